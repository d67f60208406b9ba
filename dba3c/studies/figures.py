"""The figures of a study. Measured: filled marks with error bars. Simulated: dotted, hollow, and said in the legend.

Beyond the budget, not measured: a seed or a median that did not get to the goal is an arrow that points up from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, ScalarFormatter

from dba3c.errors import UserError, prefixed
from dba3c.metrics import registry as metric_registry
from dba3c.studies.plots.curve import Curve
from dba3c.studies.plots.learning_curves import drawable, plot_learning_curves
from dba3c.studies.plots.style import PALETTE, new_figure, save
from dba3c.studies.results import (
    PointResult,
    StudyResults,
    best_mean_score,
    data_points_per_s,
    dropped_share,
    each,
    mean_of,
    steps_per_s,
)
from dba3c.studies.statistics import Estimate, TimeToGoal, spread_name

Pairs = Sequence[tuple[float, Estimate]]
Draw = Callable[[StudyResults, Path], list[Path]]
IDEAL: dict[str, Any] = {"color": "#555555", "linestyle": (0, (4, 3)), "linewidth": 1.0}


def draw_measured(axes: Axes, pairs: Pairs, label: str, index: int = 0) -> None:
    """Marks at the interquartile mean over seeds, their spread as error bars (the legend says which), seeds as dots."""
    colour = PALETTE[index % len(PALETTE)]
    x, y = [x for x, _ in pairs], [e.centre for _, e in pairs]
    spread = [[e.centre - e.low for _, e in pairs], [e.high - e.centre for _, e in pairs]]
    label = f"{label} (measured, {_spread_names([len(e.values) for _, e in pairs])})"
    axes.errorbar(x, y, yerr=spread, marker="o", color=colour, capsize=3, linewidth=1.6, label=label)
    for place, estimate in pairs:
        axes.plot([place] * len(estimate.values), estimate.values, ".", color=colour, alpha=0.35, markersize=4)


def draw_times(axes: Axes, pairs: Sequence[tuple[float, TimeToGoal]], label: str, index: int = 0) -> None:
    """Marks at the censored median, arrows where it or a seed is beyond the budget; each point says k of n reached."""
    colour = PALETTE[index % len(PALETTE)]
    known = [(x, time) for x, time in pairs if math.isfinite(time.median)]
    label = f"{label} (measured: median of all seeds, {_spread_names([len(time.seen) for _, time in pairs])})"
    axes.plot(
        [x for x, _ in known], [time.median for _, time in known],
        marker="o", color=colour, linewidth=1.6, label=label,
    )  # fmt: skip
    for x, time in pairs:
        if math.isfinite(time.low):
            top = time.high if math.isfinite(time.high) else max(time.seen)
            axes.plot([x, x], [time.low, top], color=colour, linewidth=1.2)
        for seen, reached in zip(time.seen, time.reached, strict=True):
            axes.plot(x, seen, "." if reached else "^", color=colour, alpha=0.35, markersize=4)
        if math.isinf(time.high):
            axes.plot(x, max(time.seen), "^", color=colour, markersize=8, fillstyle="none")
        at = (x, min(max(time.seen), time.high))
        axes.annotate(time.told, at, (0, 8), textcoords="offset points", ha="center", fontsize=7)
    if any(math.isinf(time.high) for _, time in pairs):
        axes.plot([], [], "^", color=colour, fillstyle="none", linestyle="none", label="beyond the budget")


def _spread_names(seeds: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(spread_name(count) for count in sorted(seeds, reverse=True)))


def draw_simulated(axes: Axes, x: Sequence[float], y: Sequence[float], label: str, index: int = 0) -> None:
    """A dotted line with hollow marks, and a legend that says that it is simulated."""
    colour = PALETTE[index % len(PALETTE)]
    axes.plot(
        x, y, ":", marker="o", markerfacecolor="white", markersize=5, color=colour, linewidth=1.4,
        label=f"{label} (SIMULATED)",
    )  # fmt: skip


def finish(axes: Axes, x_name: str, y_name: str, x: Sequence[float], log: bool = False) -> None:
    """Labels, ticks at the points, legend."""
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xticks(sorted(set(x)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)


def draw(results: StudyResults, into: str | Path) -> list[Path]:
    """Every figure of a study, PNG and SVG. One that cannot be drawn costs a line in `results.problems`."""
    folder, written = Path(into), []
    for name, figure in FIGURES[results.study.kind].items():
        try:
            written += figure(results, folder / name)
        except UserError as error:
            results.problems.append(f"figure {name}: {error}")
    return written


def _pairs(results: StudyResults, measure: Callable[[Curve], float], what: str) -> Pairs:
    pairs = each(results.points, measure)
    if not pairs:
        raise UserError(f"no run has {what}")
    return pairs


def _ratios(pairs: Pairs) -> Pairs:
    """Those that can be divided by, and stand on logarithmic axes."""
    above_zero = [(x, estimate) for x, estimate in pairs if x > 0 and estimate.centre > 0]
    if not above_zero:
        raise UserError("no point is above 0")
    return above_zero


def speed(results: StudyResults, path: Path) -> list[Path]:
    """Data points per second against the study's axis."""
    pairs = _pairs(results, data_points_per_s, "a rate of data points")
    scaling = results.study.kind == "scaling"
    pairs = _ratios(pairs) if scaling else pairs
    x = [x for x, _ in pairs]
    figure, axes = new_figure()
    draw_measured(axes, pairs, "data points per second")
    if scaling:
        axes.plot(x, [pairs[0][1].centre * one / x[0] for one in x], label="linear", **IDEAL)
    else:
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    finish(axes, results.study.x_name, "data points/s", x, log=scaling)
    return save(figure, path)


def efficiency(results: StudyResults, path: Path) -> list[Path]:
    """Data points per second and worker, as a share of the smallest point's."""
    pairs = _ratios(_pairs(results, data_points_per_s, "a rate of data points"))
    x0, one = pairs[0][0], pairs[0][1].centre
    share = [(x, e.times(x0 / x / one)) for x, e in pairs]
    figure, axes = new_figure()
    draw_measured(axes, share, "efficiency")
    axes.axhline(1.0, **IDEAL)
    axes.set_ylim(0, 1.2)
    finish(
        axes,
        results.study.x_name,
        f"data points/s per worker, {x0:g} worker{'s' if x0 > 1 else ''} = 1",
        [x for x, _ in share],
    )
    return save(figure, path)


def time_to_score(results: StudyResults, path: Path) -> list[Path]:
    """Minutes to the stop score against the number of workers, with the theoretical line T(1) / n."""
    found = [(result.point.x, result.time_to_stop_score()) for result in results.points]
    pairs = sorted(((x, time.times(60)) for x, time in found if time is not None and x > 0), key=lambda pair: pair[0])
    if not pairs:
        raise UserError("no run had a stop score")
    x = [x for x, _ in pairs]
    figure, axes = new_figure()
    draw_times(axes, pairs, "time to the stop score")
    first = pairs[0][1].median
    if math.isfinite(first):
        axes.plot(x, [first * x[0] / one for one in x], label="theoretical", **IDEAL)
    finish(axes, results.study.x_name, "minutes to the stop score", x, log=True)
    return save(figure, path)


def from_zero(measure: Callable[[Curve], float], what: str, y_name: str) -> Draw:
    """A quantity from 0 up, against the study's axis."""

    def figure_of(results: StudyResults, path: Path) -> list[Path]:
        pairs = _pairs(results, measure, f"a figure for {what}")
        figure, axes = new_figure()
        draw_measured(axes, pairs, what)
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        finish(axes, results.study.x_name, y_name, [x for x, _ in pairs])
        return save(figure, path)

    return figure_of


steps = from_zero(steps_per_s, "steps per second", "steps/s")
dropped = from_zero(dropped_share, "dropped gradients", "share of gradients")


def scores(x: str, y: str = "score/mean") -> Draw:
    """Learning curves, a line with its band for each point."""

    def figure(results: StudyResults, path: Path) -> list[Path]:
        groups, goals = {}, set()
        for result in results.points:
            told = prefixed(f"figure {path.name}: {result.point.name}", results.problems.append)
            curves = drawable(result.curves, x, y, told)
            if curves:
                groups[result.point.name] = curves
                goals |= {curve.stop_score for curve in curves}
        if not groups:
            raise UserError(f"no run has {y} against {x}")
        goal = goals.pop() if len(goals) == 1 and y.startswith("score/") else None
        return plot_learning_curves(groups, path, x=x, y=y, goal=goal)

    return figure


def against_axis(chart: str) -> Draw:
    """The mean of any chart against the study's axis."""

    def figure(results: StudyResults, path: Path) -> list[Path]:
        pairs = _pairs(results, mean_of(chart), f"recorded {chart}")
        drawn, axes = new_figure()
        draw_measured(axes, pairs, f"{chart}, mean of the run")
        finish(axes, results.study.x_name, f"{chart} ({metric_registry.charts()[chart].unit})", [x for x, _ in pairs])
        return save(drawn, path)

    return figure


def each_game(results: StudyResults, path: Path) -> list[Path]:
    """A figure of learning curves for each game: their scores share no axis."""
    written = []
    for result in results.points:
        alone = StudyResults(results.study, [result], results.problems)
        try:
            written += scores("frames")(alone, path.with_name(f"{path.name}-{result.point.name}"))
        except UserError as error:
            results.problems.append(f"figure of {result.point.name}: {error}")
    return written


FIGURES: dict[str, dict[str, Draw]] = {
    "scaling": {"time_to_score": time_to_score, "speed": speed, "efficiency": efficiency, "scores": scores("hours")},
    "parameter_servers": {"speed": speed},
    "stragglers": {"speed": speed, "steps": steps, "dropped": dropped},
    "learning_curves": {"scores": scores("frames"), "scores_by_hours": scores("hours")},
    "architectures": {"scores": scores("frames"), "scores_by_hours": scores("hours")},
    "games": {"scores": each_game},
}

MEASURES: dict[str, Callable[[PointResult], Estimate | TimeToGoal | None]] = {
    "data points/s": lambda result: result.estimate(data_points_per_s),
    "hours to the stop score": PointResult.time_to_stop_score,
    "best mean score": lambda result: result.estimate(best_mean_score),
    "dropped share": lambda result: result.estimate(dropped_share),
}
"""Columns of a report's table."""
