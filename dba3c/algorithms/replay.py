"""Uniform replay of single transitions (Lin 1992), for SAC: a ring of rows, without clock or thread.

Legend: n transitions of a call, N transitions of a sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dba3c.algorithms.sac import Transitions


class UniformSample(NamedTuple):
    """N transitions, and which of the ring's rows they are."""

    transitions: Transitions
    rows: np.ndarray
    """[N] int64."""


class UniformReplay:
    """The last ``capacity`` transitions.

    Memory: capacity × (2 observations + action + 6 bytes), taken at the start.
    """

    def __init__(
        self, capacity: int, observation_shape: tuple[int, ...], observation_dtype: np.dtype, action_dimensions: int
    ) -> None:
        self.capacity = capacity
        self.inserted = 0
        self._observations = np.zeros((capacity, *observation_shape), dtype=observation_dtype)
        self._next_observations = np.zeros_like(self._observations)
        self._actions = np.zeros((capacity, action_dimensions), dtype=np.float32)
        self._rewards = np.zeros(capacity, dtype=np.float32)
        self._terminated, self._used = np.zeros(capacity, dtype=bool), np.zeros(capacity, dtype=bool)

    def __len__(self) -> int:
        """Transitions held."""
        return min(self.inserted, self.capacity)

    def insert(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        next_observations: np.ndarray,
        valid: np.ndarray,
    ) -> None:
        """Add the valid ones of n transitions [n, …]; valid [n] bool is False for autoreset's extra step.

        Truncation needs no flag: the next observation is the true one, and ``terminated`` alone ends a value.
        """
        rows = (self.inserted + np.arange(int(valid.sum()))) % self.capacity
        self._observations[rows] = observations[valid]
        self._actions[rows] = actions[valid]
        self._rewards[rows] = rewards[valid]
        self._terminated[rows] = terminated[valid]
        self._next_observations[rows] = next_observations[valid]
        self._used[rows] = False
        self.inserted += len(rows)

    def sample(self, size: int, rng: np.random.Generator) -> UniformSample:
        """N = ``size`` transitions drawn uniformly with replacement. Raises ValueError when there is none."""
        if not len(self):
            raise ValueError("the replay is empty")
        rows = rng.integers(len(self), size=size)
        columns = (self._observations, self._actions, self._rewards, self._terminated, self._next_observations)
        return UniformSample(Transitions(*(torch.from_numpy(column[rows]) for column in columns)), rows)

    def fresh(self, sample: UniformSample) -> int:
        """How many of its transitions entered no update yet: its data points."""
        rows = np.unique(sample.rows)
        return int(np.count_nonzero(~self._used[rows]))

    def used(self, sample: UniformSample) -> None:
        """The sample, the newest there is, has entered an update."""
        self._used[sample.rows] = True
