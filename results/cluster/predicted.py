"""What the simulator says of the campaign's rows: `python results/cluster/predicted.py` (today's of all; a minute).

A cluster is fitted to rows of N ≤ 4 that compute nothing; each row is predicted from it before it is measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from figures import newest
from lab import Scene
from over_launchers import LAUNCHED
from plan import CALIBRATION, CALIBRATION_MBIT, CentralRow, Row, everything
from scipy.optimize import least_squares

from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.simulate import simulate, simulate_times
from dba3c.studies.page import rows_of
from launch.cli.simulate import SimulateArguments, cluster_of
from param_servers.errors import ConfigError

HERE = Path(__file__).resolve().parent
ROWS, CALIBRATED = HERE / "rows.jsonl", HERE / "calibrated.json"
FAMILY = {
    "servers": "servers",
    "async": "servers",
    "majority": "majority",
    **dict.fromkeys(("allreduce", *LAUNCHED), "allreduce"),
}
"""Of exchanges that are simulated alike."""
STEPS = 40
"""Of a row that computes nothing."""
SEGMENTS = 1448 / 1514
"""Payload of a full TCP segment / bytes of its Ethernet frame, as a token bucket counts them."""
FITTED = {  # start, lower and upper bound, unit
    "latency_s": (0.5, 0.0, 50.0, 1e-3),
    "message_s": (0.05, 0.0, 20.0, 1e-3),
    "wire_efficiency": (0.95, 0.5, 1.0, 1.0),
    "overlap_lost": (0.2, 0.0, 1.0, 1.0),
}


def setup_of(scene: Scene) -> Setup:
    return Setup(
        exchange=scene.exchange if scene.exchange not in LAUNCHED else "allreduce",  # type: ignore[arg-type]
        workers=scene.workers,
        backup=scene.backup,
        servers=max(1, scene.servers),
        colocated=scene.colocated,
    )


def simulated_s(cluster: Cluster, row: dict[str, Any]) -> float:
    """The step of a row that computes nothing; the cluster gives everything but the rate of the links."""
    work = Work(model_bytes=row["megabytes"] * 1e6, compute=ComputeTimes(mean_s=0.0))
    linked = replace(cluster, bytes_per_s=row["rate_mbit"] * 1e6 / 8)
    return simulate(linked, work, setup_of(Scene(*(row[name] for name in Scene._fields))), STEPS).step_s


def fit(rows: Sequence[dict[str, Any]], names: Sequence[str] = tuple(FITTED)) -> Cluster:
    """The cluster whose named values fit these rows, which compute nothing, best (least squares of logs)."""

    def with_values(values: Sequence[float]) -> Cluster:
        found = {name: float(value) * FITTED[name][3] for name, value in zip(names, values, strict=True)}
        return Cluster(**{"wire_efficiency": SEGMENTS, "bytes_per_s": rows[0]["rate_mbit"] * 1e6 / 8} | found)

    def errors(values: Sequence[float]) -> list[float]:
        return [float(np.log(1e3 * simulated_s(with_values(values), row) / row["step_ms"])) for row in rows]

    start, lower, upper = ([FITTED[name][column] for name in names] for column in range(3))
    found = least_squares(errors, start, bounds=(lower, upper), loss="soft_l1", diff_step=0.02)
    return with_values(found.x)


def calibrate(rows: list[dict[str, Any]]) -> dict[str, Cluster]:
    """What this machine's namespaces are like, in its own time, for each family of exchanges."""
    found = {}
    for exchange, points in CALIBRATION.items():
        which = ("calibration", exchange, CALIBRATION_MBIT)
        mine = [row for row in rows if (row["part"], row["exchange"], row["rate_mbit"]) == which]
        if len(mine) < len(points):
            raise ConfigError(f"{exchange} is not calibrated on this machine: --only calibration first")
        found[exchange] = fit(mine, ("latency_s", "wire_efficiency")) if exchange == "allreduce" else fit(mine)
    return found


def predicted(clusters: dict[str, Cluster], row: Row, dilation: float, steps: int) -> dict[str, float]:
    """In the cluster's time. What the machine itself is slow at is not dilated, so all is simulated in its time."""
    of = asdict(clusters[FAMILY[row.scene.exchange]]) | {"bytes_per_s": 1e9 * row.scene.gbit / 8 / dilation}
    times_s = row.times_s() * dilation
    work = Work(model_bytes=1e6 * row.scene.megabytes, compute=ComputeTimes(mean_s=float(times_s.mean())))
    steps = row.scene.case(dilation, steps).last_step // (row.scene.workers if row.scene.exchange == "async" else 1)
    outcome = simulate_times(Cluster(**of), work, setup_of(row.scene), times_s[:steps], steps)
    return {
        "predicted_ms": round(1e3 * outcome.step_s / dilation, 3),
        "predicted_dropped": round(outcome.dropped_share, 4),
    }


def judged() -> list[str]:
    """A line for each row that counts, simulated anew by the last campaign's calibration and by the constants of `dba3c
    simulate`, which knows no measurement of the cluster; and their sums."""
    fitted = {name: Cluster(**found) for name, found in json.loads(CALIBRATED.read_text(encoding="utf-8")).items()}
    constants = dict.fromkeys(CALIBRATION, cluster_of(SimulateArguments()))
    measured = {row["key"]: row for row in newest(rows_of(ROWS)) if "error" in row}
    errors, lines = [], []
    for row in everything():
        found = measured.get(row.key)
        if found is None or isinstance(row, CentralRow) or found["compute_ms"] != row.compute_ms():
            continue
        said_ms = predicted(fitted, row, found["dilation"], found["steps"])["predicted_ms"]
        unfitted_ms = predicted(constants, row, 1.0, found["steps"])["predicted_ms"]
        fit_error, error = (said / found["step_ms"] - 1 for said in (said_ms, unfitted_ms))
        errors.append((fit_error, error))
        lines.append(
            f"{fit_error:+6.1%} {error:+6.1%}  {found['step_ms']:7.1f} ms {said_ms:7.1f} {unfitted_ms:7.1f}  {row.key}"
        )
    for who, found_errors in zip(("fitted", "the constants of dba3c simulate"), np.abs(errors).T, strict=True):
        within = f"{(found_errors <= 0.1).sum()} of {len(errors)} rows within 10 %"
        lines.append(f"{who}: {within}, mean error {found_errors.mean():.1%}")
    why = "central inference, other compute times, or an exchange that is not installed"
    return [*lines, f"{len(measured) - len(errors)} not judged ({why})"]


if __name__ == "__main__":
    print("\n".join(judged()))
