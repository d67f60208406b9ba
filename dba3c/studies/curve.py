"""A run's charts as columns: read from its records, or from the small curve.csv that was committed in their place."""

import contextlib
import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dba3c.config import TrainConfig
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.metrics import registry as metric_registry
from dba3c.metrics.charts import Event, Point, points_of
from dba3c.metrics.facts import goal_reached, stop_score
from dba3c.metrics.sinks import flat_names
from dba3c.runs.contents import CURVE_FILE
from dba3c.runs.files import is_there, resolved, write_atomically
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import write_rows
from param_servers.errors import HAS_DIVERGED

_POINTS_EVERY_S = 5.0
MAY_DIFFER = (
    "run/seed", "run/run_dir", "run/track", "run/recorders", "run/recording_every", "run/evaluation_budget_s",
    "exchange/keep_checkpoints", "exchange/listen_host", "exchange/interface", "exchange/port",
    "exchange/step_timeout_s", "exchange/join_timeout_s", "exchange/reconnect_timeout_s",
    "exchange/checkpoint_timeout_s", "environment/env_threads", "environment/environment_timeout_s",
)  # fmt: skip
"""What makes no run another one than the other seeds: what is kept of it, its threads, addresses and patience."""


class NothingRecorded(UserError):
    """A run that can be read, and in which nothing is that could be drawn."""


@dataclass(frozen=True)
class Curve:
    """One run. `columns`: chart name -> values [N] float64, NaN where nothing was recorded; rows in order of time."""

    name: str
    columns: dict[str, NDArray[np.float64]]
    config: dict[str, Any]
    meta: dict[str, Any]

    @property
    def stop_score(self) -> float | None:
        """The mean score that the run was to reach, None where it had none."""
        return stop_score(self.config)

    @property
    def diverged(self) -> bool:
        """Whether its last life ended so: no later one would have learned."""
        return str(self._end.get("reason")).endswith(HAS_DIVERGED)

    def reached(self, goal: float) -> int | None:
        """The row at which the mean over the games that the stop rule asks for first was the goal; None: it never was.

        That mean is of the last games that were played in training, or of all games of an evaluation, to their ends.
        The stop rule takes games as it hears of them, the curve by the time at which they ended: where the rule saw the
        goal that ended the run, and no row has it, it is the last one of the training.
        """
        reached = self.recorded("score/best_mean") >= goal
        means, games, unfinished = (self.recorded(f"evaluation/{name}") for name in ("mean", "games", "unfinished"))
        enough = self.config.get("run", {}).get("stop_games")
        if isinstance(enough, int) and means.size and games.size:
            whole = games >= enough if not unfinished.size else (games >= enough) & ~(unfinished > 0)
            reached = (means >= goal) & whole | (reached if reached.size else False)
        rows = np.flatnonzero(reached)
        if rows.size:
            return int(rows[0])
        return self.last_trained if self._ended_at(goal) else None

    @property
    def last_trained(self) -> int | None:
        """The last row that has more data points than the one before: a roll-back may cost more than comes after."""
        counts = self.recorded("progress/data_points")
        known = np.flatnonzero(np.isfinite(counts))
        grew = np.flatnonzero(np.diff(counts[known]) > 0)
        return int(known[grew[-1] + 1]) if grew.size else None

    @property
    def _end(self) -> dict[str, Any]:
        """What its last life noted, {} where that has not ended."""
        ended: dict[str, Any] = (self.meta.get("lives") or [{}])[-1].get("ended", {})
        return ended

    def _ended_at(self, goal: float) -> bool:
        """Whether the stop rule ended the last life because the mean score was the goal."""
        if self._end.get("outcome") != "finished":
            return False
        reached = goal_reached(str(self._end.get("reason")))
        return reached is not None and reached >= float(f"{goal:g}")  # as the reason has it

    def recorded(self, chart: str) -> NDArray[np.float64]:
        """The values [N] of one chart; [0] where it was never recorded."""
        return self.columns.get(chart, np.empty(0))

    def column(self, chart: str) -> NDArray[np.float64]:
        """The values [N] of one chart. Raises UserError for an unknown one (nearest named), or one never recorded."""
        check_chart(chart)
        if chart not in self.columns:
            raise UserError(f"{self.name} never recorded {chart}")
        return self.columns[chart]


def check_chart(chart: str) -> None:
    """Raises UserError for a chart that docs/metrics.md does not have, naming the nearest, or for one worker's."""
    if re.fullmatch(rf"[a-z]+-\d+/({'|'.join(metric_registry.PER_WORKER_CHARTS)})", chart):
        raise UserError(f"{chart} is for trackers only (dba3c export): plots draw charts of the whole run")
    if chart not in metric_registry.charts():
        raise metric_registry.unknown("metric", chart, metric_registry.charts())


def load_curve(
    path: str | Path, every_s: float = _POINTS_EVERY_S, warn: Callable[[str], None] = warn_on_stderr
) -> Curve:
    """Reads a run folder: its records where it has them, else its curve.csv. `warn`: told which files hold garbage.

    Raises UserError when it is no run folder, is broken or cannot be read as a whole; NothingRecorded.
    """
    run = RunFolder.open(path)
    config, meta = run.config(), run.meta()
    points = _rows(points_of(run, every_s, per_worker=False, warn=warn))
    if not points and run.is_committed:
        points = _read_csv(run.path / CURVE_FILE)
    names = [chart for chart in metric_registry.charts() if any(chart in point for point in points)]
    if not names:
        raise NothingRecorded(f"{run.path} has recorded nothing that could be drawn")
    columns = {name: np.array([point.get(name, math.nan) for point in points], dtype=np.float64) for name in names}
    return Curve(run.path.name, columns, config, meta)


def _rows(happened: Iterable[Point | Event]) -> list[dict[str, float]]:
    """The points' values. An evaluation joins the point at which its checkpoint was written."""
    points: list[Point] = []
    before_all: list[Point] = []
    for each in happened:
        if not isinstance(each, Point):
            continue
        if not each.of_evaluation:
            points.append(each)
            while before_all:
                _join(points, 0, before_all.pop(0))
        elif points:
            steps = [point.step for point in points]
            row = next((row for row in reversed(range(len(steps))) if steps[row] <= each.step), 0)
            while row and steps[row - 1] == steps[row]:  # the last step is that of all points after the end
                row -= 1
            _join(points, row, each)
        else:
            before_all.append(each)
    return [point.values for point in points]


def _join(points: list[Point], row: int, evaluation: Point) -> None:
    """Into that row, or where it has an evaluation into one of its own behind it, of the same progress."""
    of_run = points[row]
    if any(name.startswith("evaluation/") for name in of_run.values):
        while row < len(points) and points[row].step == of_run.step and "evaluation/mean" in points[row].values:
            row += 1
        progress = {name: value for name, value in of_run.values.items() if name.startswith("progress/")}
        points.insert(row, replace(of_run, values=progress))
    points[row].values.update(evaluation.values)


def load_curves(paths: Iterable[str | Path], warn: Callable[[str], None] = warn_on_stderr) -> list[Curve]:
    """The curves of several runs, named after their folders, with as many parents as tell them apart.

    A broken run costs one line; raises UserError when none is left.
    """
    curves: dict[Path, Curve] = {}
    for given in paths:
        try:
            path = resolved(given)
            if path in curves:
                raise UserError(f"{path} is given twice")
            curves[path] = load_curve(path, warn=warn)
        except UserError as error:
            warn(f"left out: {error}")
    if not curves:
        raise UserError("none of these runs can be drawn")
    return [replace(curve, name=name) for name, curve in zip(_told_apart(list(curves)), curves.values(), strict=True)]


def _told_apart(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of different absolute paths that are different too."""
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def downsample(
    path: str | Path,
    into: str | Path,
    rows: int = 400,
    every_s: float = _POINTS_EVERY_S,
    warn: Callable[[str], None] = warn_on_stderr,
) -> Path:
    """Writes what is worth committing of a run: curve.csv of at most `rows` rows, config.json and meta.json.

    Args:
        every_s: seconds of the run between two points, before rows are left out; short runs need fewer.
        warn: is told which of the run's files hold garbage.

    The folder `into` can be drawn like the run itself; it has no secret, checkpoints or records. Returns the CSV.
    Raises UserError when the run cannot be read or `into` not be written, or is a run's folder.
    """
    curve, run, folder = load_curve(path, every_s, warn), RunFolder.open(path), Path(into)
    refuse_a_run(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "meta.json"):
            if is_there(run.path / name):
                write_atomically(folder / name, (run.path / name).read_text(encoding="utf-8"))
        told = [
            {name: "" if math.isnan(values[row]) else f"{values[row]:.7g}" for name, values in curve.columns.items()}
            for row in _kept(curve, rows)
        ]
        write_rows(folder / CURVE_FILE, told)  # the last: where it is, the others are
    return folder / CURVE_FILE


def refuse_a_run(folder: Path) -> None:
    """Raises UserError where a run is that may go on: no life could follow a curve."""
    if is_there(folder.expanduser() / "metrics"):
        raise UserError(f"{folder} is a run itself, which could not go on then: choose another folder")


def _kept(curve: Curve, rows: int) -> NDArray[np.intp]:
    """At most `rows` rows, evenly spread; the few that hold an evaluation are not left to chance (half at most)."""
    everywhere = np.arange(len(next(iter(curve.columns.values()))))
    evaluations = [values for name, values in curve.columns.items() if name.startswith("evaluation/")]
    evaluated = everywhere[np.isfinite(evaluations).any(axis=0)] if evaluations else everywhere[:0]
    evaluated = _spread(evaluated, rows // 2)
    return np.union1d(_spread(everywhere, rows - len(evaluated)), evaluated)


def _spread(places: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    count = min(count, len(places))
    return places[np.unique(np.linspace(0, len(places) - 1, count).round().astype(int))] if count else places[:0]


def _read_csv(path: Path) -> list[dict[str, float]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise UserError(f"{path} is not a table of numbers: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def group_by_configuration(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Runs by configuration, seeds and folders aside. A group is named after its runs: no two may have one name."""
    alike: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in curves:
        options = sorted(
            (key, str(value)) for key, value in flat_names(_as_of_today(curve.config)) if key not in MAY_DIFFER
        )
        alike.setdefault(tuple(options), []).append(curve)
    groups: dict[str, list[Curve]] = {}
    for members in alike.values():
        name = members[0].name if len(members) == 1 else f"{members[0].name} … {members[-1].name}"
        groups[name] = members
    return groups


def _as_of_today(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without options that are none any more, with the defaults of those that are new; as it is where it is no whole
    configuration."""
    with contextlib.suppress(UserError):
        whole: Mapping[str, Any] = json.loads(TrainConfig.from_json(json.dumps(config)).to_json())
        return whole
    return config
