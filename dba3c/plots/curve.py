"""A run's charts as columns: read from its records, or from the small curve.csv that was committed in their place."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dba3c import metric_registry
from dba3c.errors import UserError
from dba3c.line_file import warn_on_stderr
from dba3c.monitor.replay import Point, replay
from dba3c.run_folder import RunFolder

CURVE_FILE = "curve.csv"
_POINTS_EVERY_S = 5.0


@dataclass(frozen=True)
class Curve:
    """One run. `columns`: chart name -> values [N] float64, NaN where nothing was recorded; rows in order of time."""

    name: str
    columns: dict[str, NDArray[np.float64]]
    config: dict[str, Any]
    meta: dict[str, Any]

    def column(self, chart: str) -> NDArray[np.float64]:
        """The values [N] of one chart. Raises UserError for an unknown one (nearest named), or one never recorded."""
        check_chart(chart)
        if chart not in self.columns:
            raise UserError(f"{self.name} never recorded {chart}")
        return self.columns[chart]


def check_chart(chart: str) -> None:
    """Raises UserError for a chart that docs/metrics.md does not have, naming the nearest."""
    if chart not in metric_registry.charts():
        near = difflib.get_close_matches(chart, metric_registry.charts(), n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UserError(f"unknown metric {chart!r}{hint} (all of them: docs/metrics.md)")


def load_curve(path: str | Path, every_s: float = _POINTS_EVERY_S) -> Curve:
    """Reads a run folder: its records where it has them, else its curve.csv.

    Raises UserError when it is no run folder, is broken, or recorded nothing.
    """
    run = RunFolder.open(path)
    config, meta = run.config(), run.meta()
    if any(run.metrics.glob("*.jsonl")):
        happened = replay(run, every_s, per_worker=False)
        points = [each.values for each in happened if isinstance(each, Point) and not each.of_evaluation]
    elif (run.path / CURVE_FILE).exists():
        points = _read_csv(run.path / CURVE_FILE)
    else:
        points = []
    if not points:
        raise UserError(f"{run.path} has recorded nothing that could be drawn")
    names = [chart for chart in metric_registry.charts() if any(chart in point for point in points)]
    columns = {name: np.array([point.get(name, math.nan) for point in points], dtype=np.float64) for name in names}
    return Curve(run.path.name, columns, config, meta)


def load_curves(
    paths: Iterable[str | Path], warn: Callable[[str], None] = warn_on_stderr, every_s: float = _POINTS_EVERY_S
) -> list[Curve]:
    """The curves of several runs. A broken one costs one line; raises UserError when none is left."""
    curves = []
    for path in paths:
        try:
            curves.append(load_curve(path, every_s))
        except UserError as error:
            warn(f"left out: {error}")
    if not curves:
        raise UserError("none of these runs can be drawn")
    return curves


def downsample(path: str | Path, into: str | Path, rows: int = 400, every_s: float = _POINTS_EVERY_S) -> Path:
    """Writes what is worth committing of a run: curve.csv of at most `rows` rows, config.json and meta.json.

    Args:
        every_s: seconds of the run between two points, before rows are left out; short runs need fewer.

    The folder `into` can be drawn like the run itself; it has no secret, checkpoints or records. Returns the CSV.
    """
    curve, run, folder = load_curve(path, every_s), RunFolder.open(path), Path(into)
    folder.mkdir(parents=True, exist_ok=True)
    count = len(next(iter(curve.columns.values())))
    kept = np.unique(np.linspace(0, count - 1, min(rows, count)).round().astype(int))
    with (folder / CURVE_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(curve.columns)
        for row in kept:
            writer.writerow(_cell(float(values[row])) for values in curve.columns.values())
    for name in ("config.json", "meta.json"):
        if (run.path / name).exists():
            (folder / name).write_text((run.path / name).read_text(encoding="utf-8"), encoding="utf-8")
    return folder / CURVE_FILE


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.7g}"


def _read_csv(path: Path) -> list[dict[str, float]]:
    with path.open(newline="", encoding="utf-8") as file:
        try:
            return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
        except (ValueError, TypeError, AttributeError, csv.Error) as error:
            raise UserError(f"{path} is not a table of numbers: {error}") from error
