"""The project's statistics of scores and seeds, each in this one place.

IQM                  mean of the middle half (Agarwal et al. 2021, arXiv 2108.13264): as robust as the median, as sharp
                     as the mean. Of fewer than four values nothing can be cut off: it is their mean then
spread               over seeds: the 95 % percentile bootstrap; the seeds' own range where they are fewer than five
games                scores from random (0) to human (1); how they are compared: Agarwal et al. 2021, section 4
time to a goal       right-censored: a seed that did not get there counts as later than it was seen, so the median is
                     Kaplan and Meier's (1958), and is known only where more than half of the seeds got there
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

FEWEST_FOR_BOOTSTRAP = 5
"""Of fewer seeds a bootstrap knows next to nothing: their range is told, and that it is one."""
FEWEST_OF_IQM = 4
_QUARTER = 0.25
_RESAMPLES = 9_999
_CENSORED_RESAMPLES = 999  # each of them a Kaplan-Meier curve

Floats = NDArray[np.float64]
Statistic = Callable[..., Floats]
"""Called with (values, axis=…), as np.mean and np.median are."""


def interquartile_mean(values: ArrayLike, axis: int = 0) -> Floats:
    """Mean along `axis` without the lowest and the highest quarter (⌊n / 4⌋ values at each end)."""
    return np.asarray(stats.trim_mean(values, _QUARTER, axis=axis))


def bootstrap_interval(statistic: Statistic, *samples: Floats) -> tuple[Floats, Floats]:
    """95 % percentile bootstrap along the first axis (at least two values), the same for the same values.

    The statistic is called with as many samples; each is drawn anew within itself. BCa has no interval where all values
    are equal, as scores are early in training; the percentile one is that point.
    """
    found = stats.bootstrap(
        samples, statistic, axis=0, n_resamples=_RESAMPLES, method="percentile", vectorized=True, batch=500, rng=0
    ).confidence_interval
    return np.asarray(found.low), np.asarray(found.high)


def spread(values: Floats, statistic: Statistic) -> tuple[Floats, Floats]:
    """(low, high) of a statistic over seeds, the first axis of `values`: see the top of this file."""
    if len(values) < FEWEST_FOR_BOOTSTRAP:
        return values.min(axis=0), values.max(axis=0)
    return bootstrap_interval(statistic, values)


def spread_name(seeds: int) -> str:
    """What `spread` is for so many seeds, for legends."""
    if seeds < 2:
        return "one seed"
    return "95 % bootstrap" if seeds >= FEWEST_FOR_BOOTSTRAP else f"range of {seeds} seeds"


# -- scores of full games ----------------------------------------------------------------------------------------------


def score_text(score: float) -> str:
    """A score for people: four digits, but all of a larger one's whole points: 0.8712, 300.5, 14,903."""
    return f"{score:,.0f}" if abs(score) >= 1000 else f"{score:.4g}"


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """Statistics of the scores of full games, in game points."""

    games: int
    mean: float
    median: float
    iqm: float
    interval_95: tuple[float, float] | None
    """Percentile bootstrap interval of the IQM; None with a single game."""
    min: float
    max: float
    deviation: float
    """Standard deviation over the games, not of the mean."""

    def __str__(self) -> str:
        low_high = "" if self.interval_95 is None else f" [{', '.join(map(score_text, self.interval_95))}]"
        return (
            f"mean {score_text(self.mean)}, median {score_text(self.median)}, IQM {score_text(self.iqm)}{low_high}, "
            f"max {score_text(self.max)} over {self.games} full game{'' if self.games == 1 else 's'}"
        )


def summarise(scores: Sequence[float]) -> ScoreSummary:
    """The summary of at least one finite score; the same scores give the same interval."""
    values = np.asarray(scores, dtype=np.float64)
    low, high = map(float, bootstrap_interval(interquartile_mean, values)) if values.size > 1 else (None, None)
    return ScoreSummary(
        games=int(values.size),
        mean=float(values.mean()),
        median=float(np.median(values)),
        iqm=float(interquartile_mean(values)),
        interval_95=None if low is None or high is None else (low, high),
        min=float(values.min()),
        max=float(values.max()),
        deviation=float(values.std()),
    )


# -- seeds -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A statistic over seeds and its spread (a point for one seed)."""

    centre: float
    low: float
    high: float
    values: tuple[float, ...]
    """Of the seeds that have one."""
    runs: int
    """All seeds, also those without a value."""

    def times(self, factor: float) -> Estimate:
        """In another unit."""
        return replace(
            self, centre=factor * self.centre, low=factor * self.low, high=factor * self.high,
            values=tuple(factor * value for value in self.values),
        )  # fmt: skip

    def __str__(self) -> str:
        between = " to " if len(self.values) < FEWEST_FOR_BOOTSTRAP else ", "
        around = f" [{score_text(self.low)}{between}{score_text(self.high)}]" if len(self.values) > 1 else ""
        told = "" if len(self.values) == self.runs else f", {len(self.values)} of {self.runs} runs"
        return f"{score_text(self.centre)}{around}{told}"


def estimate(values: Sequence[float]) -> Estimate | None:
    """The interquartile mean of the seeds that have a finite value, None where none has."""
    known = np.array([value for value in values if math.isfinite(value)])
    if not known.size:
        return None
    centre = float(interquartile_mean(known))
    low, high = map(float, spread(known, interquartile_mean))
    low, high = min(low, centre), max(high, centre)  # (a + a + a) / 3 is not always a, and no bar may be negative
    return Estimate(centre, low, high, tuple(known.tolist()), len(values))


# -- several games -----------------------------------------------------------------------------------------------------

RANDOM_AND_HUMAN = {
    "ALE/Assault-v5": (222.4, 742.0),
    "ALE/Boxing-v5": (0.1, 12.1),
    "ALE/Breakout-v5": (1.7, 30.5),
    "ALE/Pong-v5": (-20.7, 14.6),
    "ALE/Seaquest-v5": (68.4, 42_054.7),
    "ALE/SpaceInvaders-v5": (148.0, 1_668.7),
    "ALE/StarGunner-v5": (664.0, 10_250.0),
}
"""Of random actions and of a person (Wang et al. 2016, arXiv 1511.06581, table 2)."""


def human_normalised(env_id: str, score: float) -> float | None:
    """0 for what random actions score, 1 for a person's score; None where a person's is not known here."""
    if env_id not in RANDOM_AND_HUMAN:
        return None
    random, human = RANDOM_AND_HUMAN[env_id]
    return (score - random) / (human - random)


def performance_profile(scores: Sequence[Sequence[float]], thresholds: ArrayLike) -> Floats:
    """[T]: the share of a game's runs whose score is above each of the thresholds [T], the mean over games (ibid.,
    4.2)."""
    limits = np.asarray(thresholds)[:, None]
    return np.mean([(np.asarray(seeds)[None] > limits).mean(axis=1) for seeds in scores], axis=0)


def probability_of_improvement(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """How probably a run of ours beats one of theirs at a game, equal ones half; the mean over games (ibid., 4.3).

    Args:
        ours, theirs: of the same games in the same order their seeds' scores.
    """
    shares = [
        stats.mannwhitneyu(our, their).statistic / (len(our) * len(their))
        for our, their in zip(ours, theirs, strict=True)
    ]
    return float(np.mean(shares))


# -- time to a goal ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeToGoal:
    """When seeds reached a goal, in any unit; infinity where that is later than anybody was seen."""

    median: float
    """Known where more than half of the seeds reached it."""
    low: float
    high: float
    seen: tuple[float, ...]
    """For each seed when it reached the goal, or when it was last seen without."""
    reached: tuple[bool, ...]

    @property
    def budget(self) -> float:
        """What an unknown median is surely beyond: the median if all had reached it when they were last seen."""
        return float(np.median(self.seen))

    @property
    def told(self) -> str:
        """ "3 of 5 reached"."""
        return f"{sum(self.reached)} of {len(self.seen)} reached"

    def times(self, factor: float) -> TimeToGoal:
        """In another unit."""
        return replace(
            self, median=factor * self.median, low=factor * self.low, high=factor * self.high,
            seen=tuple(factor * time for time in self.seen),
        )  # fmt: skip

    def __str__(self) -> str:
        if math.isinf(self.median):
            return f"> {self.budget:.4g}, {self.told}"
        between = " to " if len(self.seen) < FEWEST_FOR_BOOTSTRAP else ", "
        high = f"> {max(self.seen):.4g}" if math.isinf(self.high) else f"{self.high:.4g}"
        around = f" [{self.low:.4g}{between}{high}]" if len(self.seen) > 1 else ""
        return f"{self.median:.4g}{around}, {self.told}"


def time_to_goal(seen: Sequence[float], reached: Sequence[bool]) -> TimeToGoal:
    """The censored median and its spread.

    Args:
        seen: for each seed when it reached the goal or, not `reached`, when it was last seen without.
    """
    times, known = np.asarray(seen, dtype=np.float64), np.asarray(reached, dtype=bool)
    if times.size < FEWEST_FOR_BOOTSTRAP:
        reached_at = np.where(known, times, math.inf)
        low, high = float(reached_at.min()), float(reached_at.max())
    else:
        with np.errstate(invalid="ignore"):  # of its own interval between two infinite medians
            medians = stats.bootstrap(
                (np.arange(times.size),), lambda seeds: _censored_median(times[seeds], known[seeds]),
                n_resamples=_CENSORED_RESAMPLES, method="percentile", vectorized=False, rng=0,
            ).bootstrap_distribution  # fmt: skip
        # no interpolation: what is beyond the last look is beyond it
        low, high = (float(limit) for limit in np.quantile(medians, (0.025, 0.975), method="inverted_cdf"))
    return TimeToGoal(_censored_median(times, known), low, high, tuple(times.tolist()), tuple(known.tolist()))


def _censored_median(times: Floats, reached: NDArray[np.bool_]) -> float:
    """Where the Kaplan-Meier curve falls below one half; where it stays at it for a while, the middle of that."""
    if 2 * reached.sum() <= times.size:
        return math.inf
    left = stats.ecdf(stats.CensoredData(uncensored=times[reached], right=times[~reached])).sf
    share, at = left.probabilities, left.quantiles
    below = at[share < 0.5 - 1e-9][0]
    not_above = at[share < 0.5 + 1e-9][0]
    return float(below + not_above) / 2
