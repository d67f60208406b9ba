"""One look for all figures: a palette that colour-blind readers tell apart, line styles beside it, PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, ScalarFormatter

from dba3c.errors import writing
from dba3c.metrics import registry as metric_registry
from dba3c.studies.statistics import Estimate, TimeToGoal, spread_name

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours (2008), without their yellow, which is too light for lines."""
LINES = ("-", "--", "-.", ":")
IDEAL: dict[str, Any] = {"color": "#555555", "linestyle": (0, (4, 3)), "linewidth": 1.0}
"""The look of what theory says."""
AXIS_NAMES = {
    "score/mean": "mean score of the last games",
    "progress/cpu_hours": "core-hours of processor time",
    "progress/core_hours": "core-hours held (cores × hours)",
}
"""Of charts whose own name says too little."""
_LEGEND_LETTERS = 110
"""So many have room in a row below a figure."""
Pairs = Sequence[tuple[float, Estimate]]
_DOTS_PER_INCH = 160


def new_figure(width_in: float = 6.4, height_in: float = 4.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
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


def legend_below(axes: Axes, **look: Any) -> None:
    """Every label of a figure's axes once, below them, where it covers no data."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    labelled = [each.get_legend_handles_labels() for each in figure.axes]
    handles = {label: handle for found in labelled for handle, label in zip(*found, strict=True)}
    if handles:
        longest = max(map(len, handles)) + 8
        columns = max(1, min(len(handles), _LEGEND_LETTERS // longest))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=8,
            **look,
        )


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Writes PATH.png and PATH.svg. The same figure gives the same bytes: committed ones change only with it.

    Raises UserError when they cannot be written.
    """
    stem = Path(path).with_suffix("") if Path(path).suffix in (".png", ".svg") else Path(path)
    written = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with writing(written[0]), rc_context({"svg.hashsalt": "dba3c", "svg.fonttype": "path"}):
        stem.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(written[0], dpi=_DOTS_PER_INCH, metadata={"Software": None})
        figure.savefig(written[1], metadata={"Date": None})
    return written


def draw_measured(axes: Axes, pairs: Pairs, label: str, index: int = 0) -> None:
    """Marks at the interquartile mean over seeds, their spread as error bars (the legend says which), seeds as dots."""
    colour = PALETTE[index % len(PALETTE)]
    x, y = [x for x, _ in pairs], [e.centre for _, e in pairs]
    spread = [[e.centre - e.low for _, e in pairs], [e.high - e.centre for _, e in pairs]]
    label = f"{label} (measured, {_spread_names([len(e.values) for _, e in pairs])})"
    joined: dict[str, Any] = {"linestyle": "-" if len(x) > 2 else "none"}  # two points are no line
    axes.errorbar(x, y, yerr=spread, marker="o", color=colour, capsize=3, linewidth=1.6, label=label, **joined)
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
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xticks(sorted(set(x)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    legend_below(axes, handlelength=handlelength)
