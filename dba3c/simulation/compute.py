"""How long a worker takes for a gradient: drawn from a measured distribution, with stragglers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """Distribution of the seconds from parameters to gradient.

    Without samples it is lognormal. `draw` depends only on the seed and the shape, so that two clusters that differ in
    their links or servers are given the same times (common random numbers).
    """

    mean_s: float
    """Mean, before stragglers."""

    variation: float = 0.0
    """Standard deviation / mean between the steps of one worker."""

    samples_s: tuple[float, ...] = ()
    """Measured times; when there are some, they are drawn from (interpolated quantiles) and scaled to the mean."""

    worker_variation: float = 0.0
    """Standard deviation / mean between workers: a slow machine stays slow."""

    straggler_probability: float = 0.0
    """Steps of a worker that take longer than that."""

    straggler_slowdown: float = 1.0
    """... by this factor."""

    def __post_init__(self) -> None:
        for name in ("mean_s", "variation", "worker_variation"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UserError(f"{name} must be at least 0 and finite, got {value}")
        if not 0 <= self.straggler_probability <= 1:
            raise UserError(f"straggler_probability must lie in [0, 1], got {self.straggler_probability}")
        if self.straggler_slowdown < 1:
            raise UserError(f"straggler_slowdown must be at least 1, got {self.straggler_slowdown}")

    def draw(self, steps: int, workers: int, seed: int) -> NDArray[np.float64]:
        """Seconds [steps, workers] float64. The first n workers' times are the same whatever `workers` is."""
        streams = np.random.SeedSequence(seed).spawn(workers)
        times = np.empty((steps, workers))
        for worker, stream in enumerate(streams):
            random = np.random.default_rng(stream)
            times[:, worker] = self._of_worker(random, steps)
        return times

    def _of_worker(self, random: np.random.Generator, steps: int) -> NDArray[np.float64]:
        factor = float(_lognormal(random.standard_normal(), self.worker_variation))
        if self.samples_s:
            quantiles = np.quantile(self.samples_s, random.random(steps))
            mean = float(np.mean(self.samples_s))
            times = quantiles * (self.mean_s / mean if mean else 1.0)
        else:
            times = self.mean_s * _lognormal(random.standard_normal(steps), self.variation)
        late = random.random(steps) < self.straggler_probability
        return factor * np.where(late, self.straggler_slowdown * times, times)


def _lognormal(normal: NDArray[np.float64] | float, variation: float) -> NDArray[np.float64]:
    """exp of a normal with mean 1 and standard deviation `variation` after exp."""
    sigma_squared = math.log1p(variation**2)
    return np.exp(math.sqrt(sigma_squared) * np.asarray(normal) - sigma_squared / 2)
