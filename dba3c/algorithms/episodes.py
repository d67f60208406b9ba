"""Where episodes begin, for whatever must forget the one before: recurrent states, frame stacks, previous actions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dba3c.environments.protocol import Episode


class EpisodeStarts:
    """Tells after each step of B environments which observations begin an episode: those after a whole game's end.

    `terminated` and `valid` would not do. A lost life may be `terminated` though the game goes on, and the step after
    it may be a FIRE, which is as little `valid` as a reset is; an evaluation, which plays whole games, remembers across
    both. So a game has ended when it is reported, or `truncated` (an environment that broke reports no game).
    """

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, dtype=bool)

    def __call__(self, truncated: np.ndarray, episodes: Iterable[Episode]) -> np.ndarray:
        """The step just taken, truncated [B] bool and the games it finished → [B] bool: its observation is a first."""
        first, self._ended = self._ended, truncated.copy()
        for episode in episodes:
            self._ended[episode.environment] = True
        return first
