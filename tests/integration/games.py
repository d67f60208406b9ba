"""Games of one's own for the tests: `tests.integration.games:make_raising` and the like."""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Walk right for a reward; 20 steps long. It collapses from step `trouble_at` on, counted over all games."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, trouble_at: int | None = None) -> None:
        self.trouble_at, self.steps_ever = trouble_at, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps_ever += 1
        reward = float(action)
        if self.trouble_at is not None and self.steps_ever >= self.trouble_at:
            raise RuntimeError("the corridor has collapsed")
        observation = np.array([self.t / 20, 0.0], np.float32)
        return observation, reward, self.t >= 20, False, {}


class TwoSenses(gymnasium.Env):
    """One step a game: 1 for the exclusive or of what an image shows and what a vector inside a Tuple says."""

    observation_space = spaces.Dict(
        eye=spaces.Box(0, 255, (36, 36, 3), np.uint8), hand=spaces.Tuple((spaces.Discrete(2),))
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.seen, self.felt = (int(self.np_random.integers(2)) for _ in range(2))
        return self.observe(), {}

    def step(self, action):
        return self.observe(), float(action == self.seen ^ self.felt), True, False, {}

    def observe(self):
        return {"eye": np.full((36, 36, 3), 255 * self.seen, np.uint8), "hand": (self.felt,)}


def make_corridor() -> gymnasium.Env:
    return Corridor()


def make_raising() -> gymnasium.Env:
    return Corridor(trouble_at=100)


def make_flaky_for_worker_1() -> gymnasium.Env:
    """Collapses at every step, but only in the first life of worker 1."""
    flaky = "--role worker --rank 1 --incarnation 0" in " ".join(sys.argv)
    return Corridor(trouble_at=1 if flaky else None)


def make_memory_cue() -> gymnasium.Env:
    from dba3c.environments.memory_task import MemoryCue

    return MemoryCue(cues=2, delay_steps=6)
