"""The two tasks, both of which need memory; ``tasks:remember`` and ``tasks:balance_blind`` to ``dba3c train``."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class MemoryCue(gymnasium.Env):
    """A task that needs memory and nothing else: chance scores 0 on average, memory 1.

    Observation [cues + 1] float32: the cue, one-hot, at first; then zeros; at the question a 1 in the last place.

    The action at the question is the answer: reward 1 when it names the cue, −1/(cues − 1) otherwise, and the episode
    terminates. All other rewards are 0. An episode lasts ``delay_steps + 2`` steps.
    """

    def __init__(self, cues: int = 2, delay_steps: int = 8) -> None:
        self.cues = cues
        self.delay_steps = delay_steps
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)
        self._cue = 0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.cues))
        self._step = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        asked = self._step == self.delay_steps + 1
        reward = 0.0
        if asked:
            reward = 1.0 if int(action) == self._cue else -1.0 / (self.cues - 1)
        self._step += 1
        return self._observation(), reward, asked, False, {}

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.cues + 1, dtype=np.float32)
        if self._step == 0:
            observation[self._cue] = 1.0
        elif self._step == self.delay_steps + 1:
            observation[-1] = 1.0
        return observation


class PositionsOnly(gymnasium.ObservationWrapper):
    """CartPole without its velocities, which must be remembered from one position to the next."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """[2] float32: the cart's place and the pole's angle."""
        return observation[[0, 2]].astype(np.float32)


def remember() -> gymnasium.Env:
    """Four cues, asked for 10 steps later: chance is a mean score of 0, memory 1."""
    return MemoryCue(cues=4, delay_steps=10)


def balance_blind() -> gymnasium.Env:
    """CartPole-v1 by its positions: 500 is the most there is."""
    return PositionsOnly(gymnasium.make("CartPole-v1"))
