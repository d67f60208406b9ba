"""Predicted against measured: points of `python -m param_servers.benchmarks.exchange`, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dba3c.errors import UserError, warn_on_stderr
from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.simulate import simulate

_STEPS = 40
_MOST_WARNINGS = 3
_FITTED = {  # start, lower and upper bound, unit
    "latency_s": (0.5, 0.0, 50.0, 1e-3),
    "message_s": (0.05, 0.0, 20.0, 1e-3),
    "wire_efficiency": (0.95, 0.5, 1.0, 1.0),
    "overlap_lost": (0.2, 0.0, 1.0, 1.0),
    "link_unfairness": (0.1, 0.0, 0.5, 1.0),
}
KINDS = ("servers", "async", "allreduce", "majority")


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """One measurement of an exchange without compute."""

    setup: Setup
    model_bytes: float
    bytes_per_s: float
    """Of each host's link, in each direction."""
    step_s: float

    @property
    def name(self) -> str:
        """exchange n k b, for people."""
        setup = self.setup
        servers = f" k={setup.servers}" if setup.exchange in ("servers", "async") else ""
        where = " colocated" if setup.colocated else ""
        rate = self.bytes_per_s * 8 / 1e6
        size = self.model_bytes / 1e6
        return f"{setup.exchange} n={setup.workers}{servers} b={setup.backup}{where} {size:g} MB {rate:g} Mbit/s"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A point and what the model says."""

    point: MeasuredPoint
    predicted_s: float

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_s / self.point.step_s - 1


def read_points(path: str | Path, warn: Callable[[str], None] = warn_on_stderr) -> list[MeasuredPoint]:
    """The points of a file. One that is no point, or that was measured without a limit on the links, costs one line.

    Raises:
        UserError: it cannot be read, or holds no point at all.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    points, left_out = [], []
    for number, row in enumerate(_rows(text), start=1):
        try:
            points.append(_point(row))
        except (UserError, KeyError, TypeError, ValueError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            left_out.append(f"{path}, point {number} left out: {what}")
    for line in left_out[:_MOST_WARNINGS]:
        warn(line)
    if len(left_out) > _MOST_WARNINGS:
        warn(f"{path}: {len(left_out) - _MOST_WARNINGS} more points left out")
    if not points:
        raise UserError(f"{path} holds no measured point that the model can be compared with")
    return points


def _rows(text: str) -> list[Any]:
    if text.lstrip()[:1] == "{":
        rows: list[Any] = []
        for line in text.splitlines():
            try:
                rows += [json.loads(line)] if line.strip() else []
            except ValueError:
                rows.append(line)
        return rows
    return list(csv.DictReader(io.StringIO(text)))


def _point(row: object) -> MeasuredPoint:
    if not isinstance(row, Mapping):
        raise UserError("it is not an object of names and numbers")
    exchange, rate_mbit, step_ms = row["exchange"], float(row["rate_mbit"]), float(row["step_ms"])
    if exchange not in KINDS:
        raise UserError(f"unknown exchange {exchange!r}")
    if not rate_mbit > 0:
        raise UserError("its links had no limit (rate_mbit 0): then processors decide, which the model does not know")
    if not step_ms > 0:
        raise UserError(f"step_ms is {step_ms:g}")
    setup = Setup(
        exchange=exchange,
        workers=int(row["workers"]),
        backup=int(row.get("backup") or 0),
        servers=max(1, int(row.get("servers") or 1)),
        colocated=str(row.get("colocated") or "").lower() in ("1", "true"),
    )
    megabytes = float(row["megabytes"])
    return MeasuredPoint(
        setup=setup, model_bytes=megabytes * 1e6, bytes_per_s=rate_mbit * 1e6 / 8, step_s=step_ms / 1e3
    )


def predict(cluster: Cluster, point: MeasuredPoint) -> Checked:
    """The model's step for a point; the cluster gives everything but the rate of the links."""
    work = Work(model_bytes=point.model_bytes, compute=ComputeTimes(mean_s=0.0))
    outcome = simulate(replace(cluster, bytes_per_s=point.bytes_per_s), work, point.setup, _STEPS)
    return Checked(point=point, predicted_s=outcome.step_s)


def fit(
    cluster: Cluster,
    points: Sequence[MeasuredPoint],
    names: Sequence[str] = ("latency_s", "wire_efficiency", "overlap_lost", "link_unfairness"),
) -> Cluster:
    """The cluster with the named values that fit best (least squares of logs). `message_s` can be fitted too.

    Only points whose gradients are not all waited for tell the unfairness of links: without one it is left as it is.
    """
    if not any(point.setup.gradients < point.setup.workers for point in points):
        names = [name for name in names if name != "link_unfairness"]

    def with_values(values: Sequence[float]) -> Cluster:
        units = (_FITTED[name][3] for name in names)
        found = {name: float(value) * unit for name, value, unit in zip(names, values, units, strict=True)}
        return replace(cluster, **found)

    def errors(values: Sequence[float]) -> list[float]:
        return [float(np.log1p(predict(with_values(values), point).error)) for point in points]

    start, lower, upper = ([_FITTED[name][column] for name in names] for column in range(3))
    found = least_squares(errors, start, bounds=(lower, upper), loss="soft_l1", diff_step=0.02)
    return with_values(found.x)
