"""Where episodes begin, for whatever must forget the one before: recurrent states, frame stacks, previous actions."""

from __future__ import annotations

import numpy as np


class EpisodeStarts:
    """Tells after each step of B environments which observations begin an episode.

    A step that is not valid need not be a reset: an environment may have acted in the agent's place. It is one when
    the step before it ended a game.
    """

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, dtype=bool)

    def __call__(self, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Flags [B] bool of the step just taken → [B] bool, True where its observation begins an episode."""
        first = self._ended & ~valid
        self._ended = terminated | truncated
        return first
