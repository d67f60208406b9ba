"""What N scores say: mean, median, interquartile mean with its bootstrap interval, extremes.

The interquartile mean (the mean of the middle half) is Agarwal et al.'s advice (2021, arXiv 2108.13264) for few and
skewed scores: as robust as the median, as sharp as the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

_RESAMPLES = 9_999
_QUARTER = 0.25


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """Statistics of the scores of full games, in game points."""

    games: int
    mean: float
    median: float
    iqm: float
    """Mean of the middle half of the games (⌊games / 4⌋ cut at each end)."""
    interval_95: tuple[float, float] | None
    """Percentile bootstrap interval of the IQM; None with a single game."""
    min: float
    max: float
    deviation: float
    """Standard deviation over the games, not of the mean."""

    def __str__(self) -> str:
        low_high = "" if self.interval_95 is None else f" [{self.interval_95[0]:.4g}, {self.interval_95[1]:.4g}]"
        return (
            f"mean {self.mean:.4g}, median {self.median:.4g}, IQM {self.iqm:.4g}{low_high}, max {self.max:.4g} "
            f"over {self.games} full game{'' if self.games == 1 else 's'}"
        )


def summarise(scores: Sequence[float]) -> ScoreSummary:
    """The summary of at least one finite score; the same scores give the same interval."""
    values = np.asarray(scores, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no scores to summarise")
    return ScoreSummary(
        games=int(values.size),
        mean=float(values.mean()),
        median=float(np.median(values)),
        iqm=float(interquartile_mean(values, axis=0)),
        interval_95=_bootstrap_interval(values),
        min=float(values.min()),
        max=float(values.max()),
        deviation=float(values.std()),
    )


def interquartile_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean along `axis` without the lowest and the highest quarter."""
    return stats.trim_mean(values, _QUARTER, axis=axis)


def _bootstrap_interval(values: np.ndarray) -> tuple[float, float] | None:
    if values.size < 2:
        return None
    # BCa has no interval where all scores are equal, as early in training; the percentile one is that point then
    interval = stats.bootstrap(
        (values,), interquartile_mean, n_resamples=_RESAMPLES, method="percentile", vectorized=True, rng=0
    ).confidence_interval
    return float(interval.low), float(interval.high)
