"""Learning curves: the mean score of the last 50 games against frames, hours or core-hours, one run or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dba3c.errors import UserError, prefixed, warn_on_stderr
from dba3c.metrics.run_facts import flat_names
from dba3c.studies.curve import Curve, check_chart, load_curves
from dba3c.studies.figures import label_axis, legend_below, line_of, new_figure, save
from dba3c.studies.statistics import FEWEST_OF_IQM, RANDOM_AND_HUMAN, interquartile_mean, spread, spread_name

Statistic = Literal["iqm", "mean"]
X_AXES = {"frames": "progress/frames", "hours": "progress/hours", "core-hours": "progress/cpu_hours"}
"""Core-hours without more words are processor time; those held are progress/core_hours."""
RANDOM_SCORES = {env_id: random for env_id, (random, _) in RANDOM_AND_HUMAN.items()} | {"CartPole-v1": 22.6}
"""Of random actions; CartPole's by playing 1,000 games."""
MAY_DIFFER = ("run/seed", "run/run_dir")
_GRID_POINTS = 200
_FEW_POINTS = 5  # are marked: one alone would not be seen


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
    statistic: Statistic = "iqm",
    goal: float | None = None,
    title: str = "",
    warn: Callable[[str], None] = warn_on_stderr,
) -> list[Path]:
    """Draws one line for each group of runs (its seeds); returns the PNG and the SVG.

    Args:
        groups: legend to runs. One run is drawn as it is; several as a statistic with a band, each run thin. The legend
            says what the band is: a bootstrap interval, or the range of fewer than five runs.
        x: "frames", "hours" or "core-hours", or any chart's name.
        y: any chart's name.
        goal: a horizontal line, e.g. the stop score; of a score, the legend says how many runs reached it, and a known
            game's axis goes from what random actions score to it.
        title: without it the environment, how it was played, and the number of seeds.
        warn: told of each run or group that cannot be drawn; the rest is.

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
            reached = sum(curve.reached(goal) is not None for curve, _ in found)
            name += f", {reached} of {len(found)} reached {goal:g}"
        _draw_group(axes, name, [line for _, line in found], statistic, line_of(index))
    if goal is not None:
        axes.axhline(goal, color="#555555", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(f"{goal:g}", (1, goal), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    label_axis(axes, "x", x_chart)
    label_axis(axes, "y", y)
    drawn = [curve for found in lines.values() for curve, _ in found]
    axes.set_title(title or _played(drawn, {len(found) for found in lines.values() if found}), fontsize=10)
    if y.startswith("score/"):
        random_to(axes, drawn[0], goal)
    legend_below(axes)
    return save(figure, path)


def random_to(axes: Axes, curve: Curve, goal: float | None) -> None:
    """At least from a game's random score to the goal: scores that learned nothing are to look like it."""
    random = RANDOM_SCORES.get(environment_of(curve).get("env_id", ""))
    if random is not None:
        low, high = axes.get_ylim()
        top = random if goal is None else goal
        margin = 0.05 * (max(high, top) - min(low, random))
        axes.set_ylim(min(low, random - margin), max(high, top + margin))


def environment_of(curve: Curve) -> Mapping[str, Any]:
    """The options of its environment, as config.json has them."""
    options = curve.config.get("environment")
    return options if isinstance(options, Mapping) else {}


def _played(curves: Iterable[Curve], seeds: set[int]) -> str:
    """What was played, and how: "ALE/Breakout-v5, sticky actions off, 3 seeds"."""
    found = []
    for curve in curves:
        options = environment_of(curve)
        env_id, sticky = str(options.get("env_id", "")), options.get("repeat_action_probability")
        atari = env_id.startswith("ALE/") and isinstance(sticky, (int, float))
        how = (f", sticky actions {sticky:g}" if sticky else ", sticky actions off") if atari else ""
        found.append(env_id + how)
    told = " and ".join(dict.fromkeys(filter(None, found)))
    return f"{told}, {' or '.join(map(str, sorted(seeds)))} seed{'' if seeds == {1} else 's'} each"


def _lines(
    curves: Sequence[Curve], x_chart: str, y_chart: str, warn: Callable[[str], None]
) -> list[tuple[Curve, NDArray[np.float64]]]:
    """The runs that recorded both charts, with their lines; none where they share no range."""
    found = []
    for curve in curves:
        try:
            found.append((curve, _line(curve, x_chart, y_chart)))
        except UserError as error:
            warn(str(error))
    if found:
        low_x, begins_last = max((line[0, 0], curve.name) for curve, line in found)
        high_x, ends_first = min((line[0, -1], curve.name) for curve, line in found)
        if low_x > high_x:
            warn(
                f"these runs have no common range of {x_chart}: {ends_first} ends at {high_x:,.6g}, before "
                f"{begins_last} begins at {low_x:,.6g}"
            )
            return []
    return found


def _line(curve: Curve, x_chart: str, y_chart: str) -> NDArray[np.float64]:
    """[2, N]: places and values where both are known, places never falling (a resumed run may step back)."""
    line = np.stack([curve.column(x_chart), curve.column(y_chart)])
    line = line[:, np.isfinite(line).all(axis=0)]
    if not line.size:
        raise UserError(f"{curve.name} has no point with both {x_chart} and {y_chart}")
    line[0] = np.maximum.accumulate(line[0])
    return line


def _draw_group(
    axes: Axes, name: str, lines: Sequence[NDArray[np.float64]], statistic: Statistic, look: dict[str, Any]
) -> None:
    if max(line.shape[1] for line in lines) <= _FEW_POINTS:
        look = {**look, "marker": "o", "markersize": 3}
    if len(lines) == 1:
        axes.plot(*lines[0], label=name, linewidth=1.6, **look)
        return
    band = aggregate(lines, statistic)
    for line in lines:
        axes.plot(*line, linewidth=0.5, alpha=0.35, **look)
    axes.fill_between(band.x, band.low, band.high, color=look["color"], alpha=0.2, linewidth=0)
    kind = "IQM" if statistic == "iqm" and len(lines) >= FEWEST_OF_IQM else "mean"
    label = f"{name} ({kind} of {len(lines)} runs, {spread_name(len(lines))})"
    axes.plot(band.x, band.centre, label=label, linewidth=1.8, **look)


def aggregate(lines: Sequence[NDArray[np.float64]], statistic: Statistic = "iqm") -> Band:
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
    statistic: Statistic = "iqm",
    title: str = "",
) -> list[Path]:
    """Draws the runs into INTO.png and INTO.svg, as `plot_learning_curves` does; seeds of one configuration are a line.

    A run that cannot be read or drawn costs one line, the rest is drawn.
    """
    curves = load_curves(paths)
    warn = prefixed("left out", warn_on_stderr)
    goal = common_goal(curves, y)
    return plot_learning_curves(group_by_configuration(curves), into, x, y, statistic, goal, title, warn)


def common_goal(curves: Iterable[Curve], y: str) -> float | None:
    """The stop score that these runs share, where their scores are drawn."""
    goals = {curve.stop_score for curve in curves}
    return goals.pop() if len(goals) == 1 and y.startswith("score/") else None


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
