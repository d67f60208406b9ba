"""What the runs of a study add up to. Whatever is missing or broken is one line, and the rest is used."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError, prefixed, warn_on_stderr, writing
from dba3c.runs.files import is_there
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import Curve, downsample, group_by_configuration, load_curve, refuse_a_run
from dba3c.studies.statistics import Estimate, TimeToGoal, estimate, time_to_goal
from dba3c.studies.study import OVER, Study, StudyPoint, StudyRun, load, save_trial

HOURS = "progress/hours"


@dataclass(frozen=True)
class PointResult:
    """One point's runs that could be read."""

    point: StudyPoint
    curves: tuple[Curve, ...]
    seeds: int = 0
    """As many were declared; those without a curve count as not having reached a score."""

    def estimate(self, measure: Callable[[Curve], float]) -> Estimate | None:
        """The interquartile mean (mean below four seeds) of a measure that is finite, None where no run has it."""
        return estimate([measure(curve) for curve in self.curves])

    @property
    def has_enough_games(self) -> bool:
        """Whether every run has a best mean score: see `has_best_mean`."""
        return all(map(has_best_mean, self.curves))

    @property
    def best_mean_told(self) -> str:
        """The best mean score for people, marked where a run has too few games; "" where there is no score."""
        score, few = self.estimate(best_mean_score), "" if self.has_enough_games else " (too few games)"
        return "" if score is None else f"{score}{few}"

    def time_to_stop_score(self) -> TimeToGoal | None:
        """Hours until the mean score was the stop score; None where some run has no such score, or no hours."""
        timed = [np.isfinite(curve.recorded(HOURS)).any() for curve in self.curves]
        stop = self.curves[0].stop_score if all(timed) and self.curves else None  # they differ in their seeds alone
        return None if stop is None else time_to_score(self.curves, stop, seeds=self.seeds)


@dataclass
class StudyResults:
    """Everything that figures and report are made of."""

    study: Study
    points: list[PointResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Lines for people: what is missing or not whole, and why."""

    def leave_out(self, why: str) -> None:
        """Something is missing, or not whole: said now, and once more in the report."""
        self.problems.append(why)
        warn_on_stderr(why)


def read_results(folder: str | Path) -> StudyResults:
    """Reads a study's run folders, or the small ones that were committed in their place.

    Of a point's runs those count that differ in nothing but their seeds, the largest group; the others cost a line.

    Raises UserError when there is no study, or nothing of it can be drawn.
    """
    study = load(folder)
    results = StudyResults(study)
    for point in study.points:
        found = [_curve_of(run, results) for run in study.runs(folder) if run.point.name == point.name]
        alike = group_by_configuration([curve for curve in found if curve is not None]).values()
        most, *others = sorted(alike, key=len, reverse=True) or [[]]
        for group in others:
            names = ", ".join(curve.name for curve in group)
            results.leave_out(f"{names} left out: configured unlike the other {len(most)}")
        if most:
            results.points.append(PointResult(point, tuple(most), len(study.seeds)))
    if not results.points:
        raise UserError(f"nothing of the study in {folder} can be drawn")
    return results


def _curve_of(run: StudyRun, results: StudyResults) -> Curve | None:
    """A run's curve; None, and a line, where it has none or never trained: as a rate of 0 it would pass for slow."""
    told = prefixed(run.name, results.leave_out)
    try:
        if not is_there(run.folder):
            raise UserError("this seed has not been run")
        curve = replace(load_curve(run.folder, warn=told), name=run.name)
        if not np.nanmax(curve.recorded("progress/data_points"), initial=0) > 0:
            raise UserError("it ended before its first update")
    except UserError as error:
        told(str(error))
        return None
    state = run.state()
    if state not in OVER and not RunFolder(run.folder).is_committed:  # what is committed was meant to be kept
        told(f"it is {state}: counted as far as it came")
    return curve


def commit_into(folder: str | Path, into: str | Path, every_s: float = 5.0) -> int:
    """Copies what is worth committing of a study: its declaration and its runs, downsampled; returns how many runs.
    Raises UserError: another study is there."""
    study, copied = load(folder), 0
    study.joined_with(into)  # or another one is refused
    for run in study.runs(into):
        refuse_a_run(run.folder)
    with writing(into):
        Path(into).mkdir(parents=True, exist_ok=True)
    for run in study.runs(folder):
        try:
            downsample(run.folder, Path(into) / run.name, every_s=every_s, warn=prefixed(run.name, warn_on_stderr))
            copied += 1
        except UserError as error:
            warn_on_stderr(f"{run.name}: {error}")
    if not copied:
        raise UserError(f"nothing of the study in {folder} could be copied")
    study.save(into)
    for trial in study.points if study.search else ():
        save_trial(trial, into)
    return copied


# -- measures of one run, NaN where it has none ------------------------------------------------------------------------


def _trained(curve: Curve, chart: str = HOURS) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Data points, and the chart when there were so many, until the last were added: an evaluator may play on."""
    counts, values = curve.recorded("progress/data_points"), curve.recorded(chart)
    if not counts.size or not values.size:
        return np.empty(0), np.empty(0)
    known = np.isfinite(counts) & np.isfinite(values)
    counts, values = counts[known], values[known]
    grew = np.flatnonzero(np.diff(counts) > 0)
    end = grew[-1] + 2 if grew.size else len(counts)
    return counts[:end], values[:end]


def data_points_per_s(curve: Curve) -> float:
    """Data points per second of wall clock, without the first tenth of the run (start-up); undone ones count, too."""
    counts, hours = _trained(curve)
    start = len(counts) // 10
    if len(counts) < 2 or hours[-1] <= hours[start]:  # a run too short to leave anything out of it
        return float(counts[-1] / (3600 * hours[-1])) if len(counts) and hours[-1] > 0 else math.nan
    made = np.diff(counts[start:]).clip(min=0).sum()  # also what a life did that a later one began before
    return float(made / (3600 * (hours[-1] - hours[start])))


def dropped_share(curve: Curve) -> float:
    """Gradients dropped as stale among all: mean over the run."""
    return _mean(curve.recorded("cluster/dropped_share"))


def has_best_mean(curve: Curve) -> bool:
    """Whether enough games ended, of all lengths: the first to end are the shortest, which may be the best.

    Not where the newest mean is above the best that counted: an agent that came to play long games near its end.
    """
    best, newest = np.nanmax(curve.recorded("score/best_mean"), initial=-np.inf), _newest_mean(curve)
    return bool(np.isfinite(best)) and not newest > best


def _newest_mean(curve: Curve) -> float:
    means = curve.recorded("score/mean")
    means = means[np.isfinite(means)]
    return float(means[-1]) if means.size else math.nan


def best_mean_score(curve: Curve) -> float:
    """Best mean over consecutive games; the newest mean where there were too few games."""
    if has_best_mean(curve):
        return float(np.nanmax(curve.recorded("score/best_mean")))
    return _newest_mean(curve)


def time_to_score(curves: Sequence[Curve], goal: float, chart: str = HOURS, seeds: int = 0) -> TimeToGoal:
    """What of a chart that only grows was needed until the mean score was the goal.

    A run that did not reach it was seen without it to its end; one of the `seeds` without a curve, not at all. One
    that diverged would not have reached it later: it was seen without it as long as any was.
    """
    found = [_seen(curve, goal, chart) for curve in curves]
    longest = max(value for value, _ in found)
    seen = [
        (longest, False) if curve.diverged and not reached else (value, reached)
        for curve, (value, reached) in zip(curves, found, strict=True)
    ]
    return time_to_goal(*zip(*seen, *[(0.0, False)] * (seeds - len(seen)), strict=True))


def _seen(curve: Curve, goal: float, chart: str) -> tuple[float, bool]:
    """(what the chart was when the run first reached the goal, True), or (what it was in the end without, False)."""
    row, values = curve.reached(goal), curve.column(chart)
    if row is None:
        return float(np.max(_trained(curve, chart)[1], initial=0.0) or np.nanmax(values)), False
    return float(np.nanmax(values[: row + 1], initial=0.0)), True


def mean_of(chart: str) -> Callable[[Curve], float]:
    """A run's mean of any chart, without its first tenth, and but for evaluations' until training ended."""

    def mean(curve: Curve) -> float:
        values, last = curve.recorded(chart), curve.last_trained
        if last is not None and not chart.startswith("evaluation/"):
            values = values[: last + 1]
        return _mean(values[len(values) // 10 :])

    return mean


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def each(points: Sequence[PointResult], measure: Callable[[Curve], float]) -> list[tuple[float, Estimate]]:
    """(x, estimate) of the points that have the measure, by x."""
    found = [(result.point.x, result.estimate(measure)) for result in points]
    return sorted(((x, estimate) for x, estimate in found if estimate is not None), key=lambda pair: pair[0])
