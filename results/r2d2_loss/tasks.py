"""The two tasks, both of which need memory; ``tasks:remember`` and ``tasks:balance_blind`` to ``dba3c train``."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from dba3c.environments.memory_task import MemoryCue


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
