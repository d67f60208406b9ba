"""One look for all figures: a palette that colour-blind readers tell apart, line styles beside it, PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dba3c.errors import writing
from dba3c.metrics import registry as metric_registry

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours (2008), without their yellow, which is too light for lines."""
LINES = ("-", "--", "-.", ":")
_DOTS_PER_INCH = 160


def new_figure(width_in: float = 6.4, height_in: float = 4.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def line_of(index: int) -> dict[str, Any]:
    """Colour and line style of the n-th line: all are different for the first 28."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": LINES[index // len(PALETTE) % len(LINES)]}


def label_axis(axes: Axes, which: str, chart: str) -> None:
    """Names an axis after a metric, with its unit; large counts get k, M, G."""
    metric = metric_registry.charts()[chart]
    axis = axes.xaxis if which == "x" else axes.yaxis
    group, _, name = chart.replace("_", " ").rpartition("/")
    title = name if group == "progress" else f"{group} {name}"
    axis.set_label_text(title if title.endswith(metric.unit) else f"{title} ({metric.unit})")
    if metric.unit in ("frames", "data points", "frames/s", "data points/s", "games"):
        axis.set_major_formatter(EngFormatter(sep=""))


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
