"""How many gradients gathered experience is worth."""

from __future__ import annotations


class ReplayDebt:
    """Counts agent steps gathered against steps sampled.

    Args:
        start: steps to gather before the first gradient; they are owed nothing.
        ratio: steps to sample for each step gathered after that.
        per_update: steps that one gradient samples.
    """

    def __init__(self, start: int, ratio: float, per_update: int) -> None:
        self._start, self._ratio, self._per_update = start, ratio, per_update
        self._gathered = self._sampled = 0

    @property
    def owes(self) -> bool:
        """Whether a gradient is due."""
        past_start = self._gathered - self._start
        return past_start >= 0 and self._sampled < max(1, past_start) * self._ratio

    def gathered(self, steps: int) -> None:
        """Steps that train were added to the replay."""
        self._gathered += steps

    def paid(self) -> None:
        """One gradient was computed."""
        self._sampled += self._per_update
