"""`dba3c plot RUN...`: learning curves of any runs, those of one configuration drawn as seeds of one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dba3c.errors import UserError, prefixed, warn_on_stderr
from dba3c.metrics.flat_names import flat_names
from dba3c.studies.plots.curve import Curve, load_curves
from dba3c.studies.plots.learning_curves import MAY_DIFFER, Statistic, drawable, plot_learning_curves


def plot_runs(
    paths: Sequence[str | Path],
    into: str | Path,
    x: str = "frames",
    y: str = "score/mean",
    statistic: Statistic = "iqm",
    title: str = "",
) -> list[Path]:
    """Draws the runs into INTO.png and INTO.svg. A run that cannot be read or drawn costs one line, the rest is drawn.

    Args:
        x: "frames", "hours", "core-hours" or a chart's name.
        y: a chart's name (docs/metrics.md).

    Raises:
        UserError: an unknown chart, a file that cannot be written, or no run is left to draw.
    """
    curves = load_curves(paths)
    alike = group_by_configuration(curves).values()
    kept = [curve for group in alike for curve in drawable(group, x, y, prefixed("left out", warn_on_stderr))]
    if not kept:
        raise UserError(f"none of these runs can be drawn: none has {y} against {x}")
    groups = group_by_configuration(kept)
    goals = {curve.stop_score for curve in kept}
    goal = goals.pop() if len(goals) == 1 and y.startswith("score/") else None
    return plot_learning_curves(groups, into, x=x, y=y, statistic=statistic, goal=goal, title=title)


def group_by_configuration(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Runs by configuration, seeds and folders aside. A group is named after its runs: no two may have one name."""
    alike: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in curves:
        options = sorted((key, str(value)) for key, value in flat_names(curve.config) if key not in MAY_DIFFER)
        alike.setdefault(tuple(options), []).append(curve)
    groups: dict[str, list[Curve]] = {}
    for members in alike.values():
        name = members[0].name if len(members) == 1 else f"{members[0].name} … {members[-1].name}"
        groups[name] = members
    return groups
