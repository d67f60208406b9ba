"""A binary tree of sums: sampling in proportion to weights in O(log n) (Schaul et al. 2016, arXiv 1511.05952).

Legend: N leaves, n leaves of one call.
"""

from __future__ import annotations

import numpy as np


class SumTree:
    """N non-negative weights and the sums over them. Weights are set, never added to, so sums do not drift."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._width = 1 << max(0, leaves - 1).bit_length()  # the lowest level's, a power of two
        self._sums = np.zeros(2 * self._width)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def weights(self, leaves: np.ndarray) -> np.ndarray:
        """[n] float64 weights of leaves [n] int."""
        return self._sums[self._width + leaves]

    def set(self, leaves: np.ndarray, weights: np.ndarray | float) -> None:
        """Give leaves [n] int their weights [n]; where a leaf is named twice, the last one holds.

        Raises ValueError for a weight that is negative or not finite.
        """
        values = np.broadcast_to(np.asarray(weights, dtype=np.float64), leaves.shape)
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ValueError(f"weights must be finite and not negative, got {values.min()} … {values.max()}")
        self._sums[self._width + leaves] = values
        nodes = np.unique((self._width + leaves) // 2)
        while nodes.size and nodes[0] >= 1:
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes // 2)

    def find(self, sums: np.ndarray) -> np.ndarray:
        """[n] int: the leaves at which the running sum of weights first exceeds sums [n] in [0, total).

        Never a leaf of weight 0, whatever rounding does. Raises ValueError when all weights are 0.
        """
        if self.total <= 0:
            raise ValueError("the tree holds no weight to sample from")
        rest = np.array(sums, dtype=np.float64)
        nodes = np.ones(rest.shape, dtype=np.int64)
        for _ in range(self._width.bit_length() - 1):
            left = self._sums[2 * nodes]
            right = (rest >= left) & (self._sums[2 * nodes + 1] > 0)
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self._width
