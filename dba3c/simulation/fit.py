"""The cluster that measured steps were made on: points that `param_servers.benchmarks.exchange --output FILE` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dba3c.errors import UserError, warn_on_stderr
from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.simulate import simulate

_STEPS = 40
_FITTED = {  # start, lower and upper bound, unit
    "latency_s": (0.5, 0.0, 50.0, 1e-3),
    "message_s": (0.05, 0.0, 20.0, 1e-3),
    "wire_efficiency": (0.95, 0.5, 1.0, 1.0),
    "overlap_lost": (0.2, 0.0, 1.0, 1.0),
    "link_unfairness": (0.1, 0.0, 0.5, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """One measurement of an exchange whose workers all take the same time, or none."""

    setup: Setup
    model_bytes: float
    bytes_per_s: float
    """Of each host's link, in each direction."""
    step_s: float
    compute_s: float = 0.0

    def predicted_s(self, cluster: Cluster) -> float:
        """The model's step; the cluster gives everything but the rate of the links."""
        work = Work(model_bytes=self.model_bytes, compute=ComputeTimes(mean_s=self.compute_s))
        return simulate(replace(cluster, bytes_per_s=self.bytes_per_s), work, self.setup, _STEPS).step_s


def read_points(path: str | Path, warn: Callable[[str], None] = warn_on_stderr) -> list[MeasuredPoint]:
    """The points of a file of JSON lines. One that is none, or of links without a limit, costs one line.

    Raises:
        UserError: it cannot be read, or holds no point at all.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    points = []
    for number, line in enumerate(lines, start=1):
        try:
            points.append(_point(json.loads(line)))
        except (UserError, KeyError, TypeError, ValueError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            warn(f"{path}, line {number} left out: {what}")
    if not points:
        raise UserError(f"{path} holds no measured point that the model can be compared with")
    return points


def _point(row: dict[str, Any]) -> MeasuredPoint:
    if row["exchange"] not in ("servers", "async", "allreduce", "majority"):
        raise UserError(f"unknown exchange {row['exchange']!r}")
    if not row["rate_mbit"] > 0:
        raise UserError("its links had no limit (rate_mbit 0): then processors decide, which the model does not know")
    setup = Setup(
        exchange=row["exchange"], workers=row["workers"], backup=row["backup"], servers=max(1, row["servers"])
    )
    return MeasuredPoint(
        setup=setup,
        model_bytes=row["megabytes"] * 1e6,
        bytes_per_s=row["rate_mbit"] * 1e6 / 8,
        step_s=row["step_ms"] / 1e3,
        compute_s=row.get("compute_ms", 0.0) / 1e3,
    )


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
        tried = with_values(values)
        return [float(np.log(point.predicted_s(tried) / point.step_s)) for point in points]

    start, lower, upper = ([_FITTED[name][column] for name in names] for column in range(3))
    found = least_squares(errors, start, bounds=(lower, upper), loss="soft_l1", diff_step=0.02)
    return with_values(found.x)
