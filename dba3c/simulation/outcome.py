"""What a simulation found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WARM_UP_STEPS = 2
"""Steps that begin with everybody at once, as no later one does."""


@dataclass(frozen=True)
class Outcome:
    """`commits_s` [steps] float64: when each step was committed, in seconds from the start."""

    commits_s: NDArray[np.float64]
    gradients: int
    dropped: int
    data_points: float
    """In one gradient."""
    warm_up: int = WARM_UP_STEPS

    @property
    def step_s(self) -> float:
        """Mean seconds of a step, after the first ones."""
        skipped = self.warm_up if len(self.commits_s) > 2 * self.warm_up else 0
        times = np.diff(self.commits_s, prepend=0.0)[skipped:]
        return float(times.mean())

    @property
    def data_points_per_s(self) -> float:
        """Data points that enter updates per second; infinity when a step takes no time."""
        return self.gradients * self.data_points / self.step_s if self.step_s else float("inf")

    @property
    def dropped_share(self) -> float:
        """Late gradients among all that were finished."""
        finished = self.gradients * len(self.commits_s) + self.dropped
        return self.dropped / finished
