"""Where the time of a run's workers went, section by section: why it was slow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dba3c.errors import UserError
from dba3c.studies.curve import Curve
from dba3c.studies.figures import PALETTE, label_axis, new_figure, save

_PREFIX = "sections/worker_"


def plot_time_by_section(curve: Curve, path: str | Path) -> list[Path]:
    """Shares of the workers' time against hours, stacked; returns the PNG and the SVG."""
    names = [name for name in curve.columns if name.startswith(_PREFIX)]
    if not names:
        raise UserError(f"{curve.name} recorded no time by section")
    figure, axes = new_figure()
    shares = np.nan_to_num(np.stack([curve.columns[name] for name in names]))
    told = shares.sum(axis=0) > 0
    labels = [name.removeprefix(_PREFIX) for name in names]
    axes.stackplot(
        curve.column("progress/hours")[told], shares[:, told], labels=labels, colors=PALETTE[: len(names)], alpha=0.85
    )
    axes.set_ylim(0, 1)
    label_axis(axes, "x", "progress/hours")
    axes.set_ylabel("share of the workers' time")
    axes.legend(frameon=False, fontsize=8, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.1))
    return save(figure, path)
