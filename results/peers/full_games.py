"""Makes the emulator tell of each full game, `full game SCORE`, whatever wrappers do to rewards and lives.

Imported by the processes that step a system's environments.
"""

from __future__ import annotations

from ale_py.env import AtariEnv

_step, _reset = AtariEnv.step, AtariEnv.reset


def _counted_step(self, action):
    observation, reward, terminated, truncated, info = _step(self, action)
    self.told_score = getattr(self, "told_score", 0.0) + reward
    if terminated or truncated:
        print(f"full game {self.told_score:g}", flush=True)
        self.told_score = 0.0
    return observation, reward, terminated, truncated, info


def _counted_reset(self, *, seed=None, options=None):
    self.told_score = 0.0
    return _reset(self, seed=seed, options=options)


AtariEnv.step, AtariEnv.reset = _counted_step, _counted_reset
