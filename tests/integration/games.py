"""Games of one's own for the tests: `tests.integration.games:make_raising` and the like."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Walk right for a reward; 20 steps long. It misbehaves from step `trouble_at` on, counted over all games."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, trouble: str = "", trouble_at: int = 0) -> None:
        self.trouble, self.trouble_at, self.steps_ever = trouble, trouble_at, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps_ever += 1
        reward = float(action)
        if self.trouble and self.steps_ever >= self.trouble_at:
            if self.trouble == "raise":
                raise RuntimeError("the corridor has collapsed")
            reward = float("nan")
        observation = np.array([self.t / 20, 0.0], np.float32)
        return observation, reward, self.t >= 20, False, {}


def make_corridor() -> gymnasium.Env:
    return Corridor()


def make_raising() -> gymnasium.Env:
    return Corridor("raise", trouble_at=100)


def make_nan_reward() -> gymnasium.Env:
    return Corridor("nan", trouble_at=100)


def make_memory_cue() -> gymnasium.Env:
    from dba3c.environments.memory_task import MemoryCue

    return MemoryCue(cues=2, delay_steps=6)
