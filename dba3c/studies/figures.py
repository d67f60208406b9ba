"""One look for all figures: a palette that colour-blind readers tell apart, line styles beside it, PNG and SVG.

Learning curves, the figure that any runs have: the mean score of the last 50 games against frames, hours or core-hours.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, ScalarFormatter
from numpy.typing import NDArray

from dba3c.errors import UserError, prefixed, warn_on_stderr, writing
from dba3c.metrics import registry as metric_registry
from dba3c.runs.files import printable, write_atomically
from dba3c.studies.curve import Curve, check_chart, group_by_configuration, load_curves
from dba3c.studies.statistics import (
    FEWEST_OF_IQM,
    RANDOM_AND_HUMAN,
    Estimate,
    TimeToGoal,
    interquartile_mean,
    spread,
    spread_name,
)

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours (2008), without their yellow, which is too light for lines."""
LINES = ("-", "--", "-.", ":")
IDEAL: dict[str, Any] = {"color": "#555555", "linestyle": (0, (4, 3)), "linewidth": 1.0}
"""The look of what theory says."""
AXIS_NAMES = {
    "score/mean": "mean score of the last games",
    "progress/cpu_hours": "core-hours of processor time",
    "progress/core_hours_held": "core-hours held (cores × hours)",
}
"""Of charts whose own name says too little."""
_LEGEND_LETTERS = 110
"""How many fit into one row of the legend below a figure."""
_ROWS_WITH_ROOM, _LEGEND_ROW_IN = 10, 0.17
Pairs = Sequence[tuple[float, Estimate]]
_DOTS_PER_INCH = 160
Centre = Literal["iqm", "mean"]
X_AXES = {"frames": "progress/frames", "hours": "progress/hours", "core-hours": "progress/cpu_hours"}
"""Core-hours without more words are processor time; those held are progress/core_hours_held."""
RANDOM_SCORES = {env_id: random for env_id, (random, _) in RANDOM_AND_HUMAN.items()} | {"CartPole-v1": 22.6}
"""Of random actions; CartPole's by playing 1,000 games."""
_GRID_POINTS = 200
_FEW_POINTS = 5  # are marked: one alone would not be seen


def new_figure(height_in: float = 4.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(6.4, height_in), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def new_panels(
    count: int, columns: int, height_in: float, x_name: str, y_name: str, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with small panels, `columns` beside each other, whose axes are named once."""
    rows = -(-count // columns)
    figure = Figure(figsize=(10.0, height_in * rows), layout="constrained")
    panels: list[Axes] = []
    for place in range(1, count + 1):
        panels.append(figure.add_subplot(rows, columns, place, sharex=panels[0] if sharex and panels else None))
        panels[-1].tick_params(labelsize=8)
        panels[-1].spines[["top", "right"]].set_visible(False)
    figure.supxlabel(x_name, fontsize=9)
    figure.supylabel(y_name, fontsize=9)
    return figure, panels


def line_of(index: int) -> dict[str, Any]:
    """Colour and line style of the n-th line: all are different for the first 28."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": LINES[index // len(PALETTE) % len(LINES)]}


def label_axis(axes: Axes, which: str, chart: str) -> None:
    """Names an axis after a metric, with its unit; large counts get k, M, G."""
    metric = metric_registry.charts()[chart]
    axis = axes.xaxis if which == "x" else axes.yaxis
    group, _, name = chart.replace("_", " ").rpartition("/")
    title = name if group == "progress" else f"{group} {name}"
    title = AXIS_NAMES.get(chart) or (title if title.endswith(metric.unit) else f"{title} ({metric.unit})")
    axis.set_label_text(title)
    if metric.unit in ("frames", "data points", "frames/s", "data points/s", "games"):
        axis.set_major_formatter(EngFormatter(sep=""))


def plain(text: str) -> str:
    """A user's name or title for matplotlib, as it stands: no formula between $s, no label hidden for its first _."""
    return ("\u200b" if text.startswith("_") else "") + printable(text).replace("$", r"\$")


def begin_y_at_zero(axes: Axes) -> None:
    """With room above what is drawn, which then is not to change."""
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])


def legend_below(axes: Axes, **look: Any) -> None:
    """Every label of a figure's axes once, below them, where it covers no data; many make the figure taller."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    labelled = [each.get_legend_handles_labels() for each in figure.axes]
    handles = {label: handle for found in labelled for handle, label in zip(*found, strict=True)}
    if handles:
        longest = max(map(len, handles)) + 8
        columns = max(1, min(len(handles), _LEGEND_LETTERS // longest))
        look = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 8, **look}
        rows = math.ceil(len(handles) / columns)
        figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_IN * max(0, rows - _ROWS_WITH_ROOM))
        figure.legend(handles.values(), handles.keys(), **look)


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Writes PATH.png and PATH.svg. The same figure gives the same bytes: committed ones change only with it.

    Raises UserError when they cannot be written.
    """
    stem = Path(path).with_suffix("") if Path(path).suffix in (".png", ".svg") else Path(path)
    if not stem.name:
        raise UserError(f"{path} is no figure's name: give one, as in learning_curves")
    looks: dict[str, dict[str, Any]] = {
        "png": {"dpi": _DOTS_PER_INCH, "metadata": {"Software": None}},
        "svg": {"metadata": {"Date": None}},
    }
    written = []
    for kind, look in looks.items():
        image, file = BytesIO(), stem.with_name(f"{stem.name}.{kind}")
        with rc_context({"svg.hashsalt": "dba3c", "svg.fonttype": "path"}):
            figure.savefig(image, format=kind, **look)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, image.getvalue())
        written.append(file)
    return written


def draw_measured(axes: Axes, pairs: Pairs, label: str) -> None:
    """Marks at the interquartile mean over seeds, their spread as error bars (the legend says which), seeds as dots."""
    colour, x, y = PALETTE[0], [x for x, _ in pairs], [e.centre for _, e in pairs]
    spread = [[e.centre - e.low for _, e in pairs], [e.high - e.centre for _, e in pairs]]
    label = f"{label} (measured, {spread_names([len(e.values) for _, e in pairs])})"
    joined: dict[str, Any] = {"linestyle": "-" if len(x) > 2 else "none"}  # two points are no line
    axes.errorbar(x, y, yerr=spread, marker="o", color=colour, capsize=3, linewidth=1.6, label=label, **joined)
    for place, estimate in pairs:
        axes.plot([place] * len(estimate.values), estimate.values, ".", color=colour, alpha=0.35, markersize=4)


def draw_times(axes: Axes, pairs: Sequence[tuple[float, TimeToGoal]], label: str) -> None:
    """Marks at the censored median, arrows where it or a seed is beyond the budget; each point says k of n reached."""
    colour = PALETTE[0]
    medians = [time.median if math.isfinite(time.median) else math.nan for _, time in pairs]
    joined: dict[str, Any] = {"linestyle": "-" if len(pairs) > 2 else "none"}  # nor over a point that is not known
    label = f"{label} (measured: median of all seeds, {spread_names([len(time.seen) for _, time in pairs])})"
    axes.plot([x for x, _ in pairs], medians, marker="o", color=colour, linewidth=1.6, label=label, **joined)
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


def spread_names(seeds: Sequence[int]) -> str:
    """What the bars of points with so many seeds each are, those of the most first."""
    return ", ".join(dict.fromkeys(spread_name(count) for count in sorted(seeds, reverse=True)))


def finish(
    axes: Axes, x_name: str, y_name: str, x: Sequence[float], log: bool = False, handlelength: float | None = None
) -> None:
    """Labels, ticks at the points, legend; `handlelength`: of its lines, where dashed and solid ones must differ."""
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        thousands = EngFormatter(sep="")  # which says 50m of 0.05
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: thousands(y) if y >= 1 else f"{y:g}"))
    axes.set_xticks(sorted(set(x)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    legend_below(axes, handlelength=handlelength)


# -- learning curves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """A statistic of several runs at common places [G], with its spread over runs."""

    x: NDArray[np.float64]
    centre: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def plot_learning_curves(
    groups: Mapping[str, Sequence[Curve]],
    path: str | Path,
    x: str = "frames",
    y: str = "score/mean",
    statistic: Centre = "iqm",
    goal: float | None = None,
    title: str = "",
    warn: Callable[[str], None] = warn_on_stderr,
    seeds: int = 0,
) -> list[Path]:
    """Draws one line for each group of runs (its seeds); returns the PNG and the SVG.

    Args:
        groups: legend to runs. One run is drawn as it is; several as a statistic with a band to where the first of them
            ends, each run thin, to a dot. The legend says what the band is: a bootstrap interval, or the range of fewer
            than five runs.
        x: "frames", "hours" or "core-hours", or any chart's name.
        y: any chart's name.
        goal: a horizontal line, e.g. the stop score; of a score, the legend says how many runs reached it, and a known
            game's axis goes from what random actions score to it.
        title: without it the environment, how it was played, and the number of seeds.
        warn: told of each run or group that cannot be drawn; the rest is.
        seeds: how many runs of each group were declared: of so many, not of those that came so far, some reached it.

    Raises:
        UserError: an unknown chart, a file that cannot be written, or nothing is left to draw.
    """
    x_chart = X_AXES.get(x, x)
    for chart in (x_chart, y):
        check_chart(chart)
    lines = {name: _lines(curves, x_chart, y, warn) for name, curves in groups.items()}
    if not any(lines.values()):
        raise UserError(f"none of these runs can be drawn: none has {y} against {x}")
    figure, axes = new_figure()
    for index, (name, found) in enumerate((name, found) for name, found in lines.items() if found):
        if goal is not None and y.startswith("score/"):
            reached = sum(curve.reached(goal) is not None for curve in groups[name])
            name += f", {reached} of {max(seeds, len(groups[name]))} reached {goal:g}"
        _draw_group(axes, plain(name), [line for _, line in found], statistic, line_of(index))
    if goal is not None:
        axes.axhline(goal, color="#555555", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(f"{goal:g}", (1, goal), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    label_axis(axes, "x", x_chart)
    label_axis(axes, "y", y)
    drawn = [curve for found in lines.values() for curve, _ in found]
    axes.set_title(plain(title or _played(drawn, {len(found) for found in lines.values() if found})), fontsize=10)
    if y.startswith("score/"):
        random_to(axes, drawn[0], goal)
    legend_below(axes)
    return save(figure, path)


def random_to(axes: Axes, curve: Curve, goal: float | None) -> None:
    """At least from a game's random score to the goal: scores that learned nothing are to look like it."""
    random = RANDOM_SCORES.get(curve.config.get("environment", {}).get("env_id", ""))
    if random is not None:
        low, high = axes.get_ylim()
        top = random if goal is None else goal
        margin = 0.05 * (max(high, top) - min(low, random))
        axes.set_ylim(min(low, random - margin), max(high, top + margin))


def _played(curves: Iterable[Curve], seeds: set[int]) -> str:
    """What was played, and how: "ALE/Breakout-v5, sticky actions off, 3 seeds"."""
    found = []
    for curve in curves:
        options = curve.config.get("environment", {})
        env_id, sticky = str(options.get("env_id", "")), options.get("repeat_action_probability")
        atari = env_id.startswith("ALE/") and isinstance(sticky, (int, float))
        how = (f", sticky actions {sticky:g}" if sticky else ", sticky actions off") if atari else ""
        found.append(env_id + how)
    told = " and ".join(dict.fromkeys(filter(None, found)))
    return f"{told}, {' or '.join(map(str, sorted(seeds)))} seed{'' if seeds == {1} else 's'} each"


def _lines(
    curves: Sequence[Curve], x_chart: str, y_chart: str, warn: Callable[[str], None]
) -> list[tuple[Curve, NDArray[np.float64]]]:
    """The runs that recorded both charts, with their lines; told where they share no range, and have no band then."""
    found = []
    for curve in curves:
        try:
            found.append((curve, _line(curve, x_chart, y_chart)))
        except UserError as error:
            warn(str(error))
    if found and all((np.diff(line[0]) >= 0).all() for _, line in found):
        low_x, begins_last = max((line[0, 0], curve.name) for curve, line in found)
        high_x, ends_first = min((line[0, -1], curve.name) for curve, line in found)
        if low_x > high_x:
            warn(
                f"these runs have no common range of {x_chart}, and no band: {ends_first} ends at {high_x:,.6g}, "
                f"before {begins_last} begins at {low_x:,.6g}"
            )
    return found


def _line(curve: Curve, x_chart: str, y_chart: str) -> NDArray[np.float64]:
    """[2, N]: places and values where both are known; those of progress never fall (a resumed run may step back)."""
    line = np.stack([curve.column(x_chart), curve.column(y_chart)])
    line = line[:, np.isfinite(line).all(axis=0)]
    if not line.size:
        raise UserError(f"{curve.name} has no point with both {x_chart} and {y_chart}")
    if x_chart.startswith("progress/"):
        line[0] = np.maximum.accumulate(line[0])
    return line


def _draw_group(
    axes: Axes, name: str, lines: Sequence[NDArray[np.float64]], statistic: Centre, look: dict[str, Any]
) -> None:
    if max(line.shape[1] for line in lines) <= _FEW_POINTS:
        look = {**look, "marker": "o", "markersize": 3}
    if len(lines) == 1:
        axes.plot(*lines[0], label=name, linewidth=1.6, **look)
        return
    for line in lines:
        axes.plot(*line, linewidth=0.5, alpha=0.35, **look)
        axes.plot(*line[:, -1:], marker="o", markersize=3, color=look["color"])
    rise = all((np.diff(line[0]) >= 0).all() for line in lines)  # else a place has several values
    if not rise or max(line[0, 0] for line in lines) > min(line[0, -1] for line in lines):  # one died before all others
        why = "without a common range" if rise else "without a band"
        axes.plot([], [], label=f"{name} ({len(lines)} runs {why})", linewidth=0.5, **look)
        return
    band = aggregate(lines, statistic)
    axes.fill_between(band.x, band.low, band.high, color=look["color"], alpha=0.2, linewidth=0)
    kind = "IQM" if statistic == "iqm" and len(lines) >= FEWEST_OF_IQM else "mean"
    label = f"{name} ({kind} of {len(lines)} runs, {spread_name(len(lines))})"
    axes.plot(band.x, band.centre, label=label, linewidth=1.8, **look)


def aggregate(lines: Sequence[NDArray[np.float64]], statistic: Centre = "iqm") -> Band:
    """The statistic over runs, and its spread (`dba3c.studies.statistics`), at places that every run has reached.

    Args:
        lines: one [2, N] array of places and values for each run; places do not fall.
    """
    grid = np.linspace(max(line[0, 0] for line in lines), min(line[0, -1] for line in lines), _GRID_POINTS)
    values = np.stack([np.interp(grid, *line) for line in lines])  # [runs, G]
    of = interquartile_mean if statistic == "iqm" else np.mean
    low, high = spread(values, of)
    return Band(grid, np.asarray(of(values, axis=0)), low, high)


# -- dba3c plot RUN... -------------------------------------------------------------------------------------------------


def plot_runs(
    paths: Sequence[str | Path],
    into: str | Path,
    x: str = "frames",
    y: str = "score/mean",
    title: str = "",
) -> list[Path]:
    """Draws the runs into INTO.png and INTO.svg, as `plot_learning_curves` does; seeds of one configuration are a line.

    A run that cannot be read or drawn costs one line, the rest is drawn.
    """
    curves, warn = load_curves(paths), prefixed("left out", warn_on_stderr)
    groups = group_by_configuration(curves)
    return plot_learning_curves(groups, into, x, y, goal=common_goal(curves, y), title=title, warn=warn)


def common_goal(curves: Iterable[Curve], y: str) -> float | None:
    """The stop score that these runs share, where their scores are drawn."""
    goals = {curve.stop_score for curve in curves}
    return goals.pop() if len(goals) == 1 and y.startswith("score/") else None
