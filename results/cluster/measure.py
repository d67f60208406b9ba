"""The 64-node cluster by time dilation, row by row: `python results/cluster/measure.py` (root, idle machine).

Rows that are in rows.jsonl are not measured again, so it may be interrupted, or run in pieces (`--for-s 270`). What
the simulator predicts for a row is computed from the calibration (N ≤ 4, no compute) before the row is measured, and
written with it. A row whose processes took more than 60 % of the machine goes to refused.jsonl, and is tried slower.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from page import tables, with_marked
from peers import PEERS

from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.fit import MeasuredPoint, fit
from dba3c.simulation.simulate import simulate_times
from dba3c.studies.page import facts, made_by, renew
from param_servers.benchmarks import cluster as lab
from param_servers.benchmarks.cluster import CORES, Scene, node_times_s
from param_servers.errors import ConfigError

HERE = Path(__file__).resolve().parent
ROWS, REFUSED, CALIBRATED = HERE / "rows.jsonl", HERE / "refused.jsonl", HERE / "calibrated.json"
PARAMETERS = {"dba3c": 332_037, "small": 677_429, "nature": 1_686_693}
REDUCTION_MS = {"dba3c": 0.27, "small": 0.57, "nature": 2.0}
"""Of a node's lanes: `param_servers.benchmarks.lanes --lanes 2`, each lane on a core of its own (README)."""
ENVIRONMENTS, LENGTH_STEPS = 4, 5
POINTS = CORES * ENVIRONMENTS * LENGTH_STEPS
NODES = (64, 1, 4, 16)
SEED = 0
DRAWN_STEPS = 200
WIRE_EFFICIENCY = 1448 / 1514
CALIBRATION_MBIT = 250.0
CALIBRATION = {
    "servers": (
        (1, 1, 0, 0.004), (4, 4, 0, 0.004), (1, 1, 0, 2.7), (2, 1, 0, 1.33), (4, 1, 0, 1.33), (4, 4, 0, 1.33),
        (4, 2, 1, 1.33), (4, 1, 2, 1.33), (3, 1, 1, 1.33),
    ),
    "allreduce": ((2, 0, 0, 0.004), (4, 0, 0, 0.004), (2, 0, 0, 1.33), (4, 0, 0, 1.33), (3, 0, 0, 2.7)),
    "majority": ((4, 0, 1, 0.004), (2, 0, 0, 1.33), (4, 0, 1, 1.33), (3, 0, 1, 1.33)),
}  # fmt: skip
"""(n, k, b, megabytes), without compute; each family of exchanges is fitted by itself."""
STRAGGLER = 3.0
ATTEMPTS = 2
"""At slower links a byte costs more processor time, packet by packet: a row may never be slow enough."""
FAMILY = {"servers": "servers", "async": "servers", "allreduce": "allreduce", "majority": "majority"}


class Row(NamedTuple):
    """What is measured."""

    part: str
    network: str
    """Whose compute times; "" for none."""
    scene: Scene
    tail: float = 0.0
    """Sigma of lognormal stragglers."""
    dilation: int | None = None
    """None: chosen."""
    slow: float = 1.0
    """Worker 1 always computes so many times as long."""

    @property
    def key(self) -> str:
        return json.dumps([self.part, self.network, *self.scene, self.tail, self.dilation, self.slow])

    def times_s(self) -> NDArray[np.float64]:
        """[steps, n]: the same for all rows of a network, whatever exchange, D and n."""
        if not self.network:
            return np.zeros((1, self.scene.workers))
        lane_s = recorded_s(self.network)
        reduction_s = REDUCTION_MS[self.network] / 1e3
        times_s = node_times_s(lane_s, reduction_s, DRAWN_STEPS, self.scene.workers, SEED, self.tail)
        times_s[:, 1:2] *= self.slow
        return times_s


def megabytes(network: str) -> float:
    return 4 * PARAMETERS[network] / 1e6


def recorded_s(network: str) -> NDArray[np.float64]:
    """Of a lane's rollouts."""
    with (HERE / "compute_times.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["network"] == network]
    return np.array([float(row["ms"]) / 1e3 for row in rows if int(row["environments"]) == ENVIRONMENTS])


def scene(exchange: str, n: int, network: str, gbit: float, k: int = 0, b: int = 0, colocated: bool = False) -> Scene:
    return Scene(exchange, n, b, k, colocated, megabytes(network), gbit)


# -- which rows --------------------------------------------------------------------------------------------------------


def calibration() -> Iterator[Row]:
    for exchange, points in CALIBRATION.items():
        for n, k, b, mb in points:
            yield Row("calibration", "", Scene(exchange, n, b, k, False, mb, CALIBRATION_MBIT / 1e3), dilation=1)


def method() -> Iterator[Row]:
    """The same case at several D; D = 1 where few processes are enough."""
    for dilation in (1, 5, 10):
        yield Row("method", "small", scene("servers", 2, "small", 0.25, k=1), dilation=dilation)
        yield Row("method", "small", scene("allreduce", 3, "small", 0.25), dilation=dilation)
    for dilation in (10, 20, 40):
        yield Row("method", "small", scene("servers", 16, "small", 1, k=4), dilation=dilation)
        yield Row("method", "small", scene("allreduce", 16, "small", 1), dilation=dilation)


def workers(gbit: float, network: str) -> Iterator[Row]:
    """DBA3C's first axis: more nodes."""
    for n in reversed(NODES):
        yield Row("workers", network, scene("servers", n, network, gbit, k=4))
        yield Row("workers", network, scene("servers", n, network, gbit, k=n, colocated=True))
        if n > 1:
            yield Row("workers", network, scene("allreduce", n, network, gbit))
        if n > 4:
            yield Row("workers", network, scene("majority", n, network, gbit, b=n // 16))


def asynchronous(gbit: float, network: str) -> Iterator[Row]:
    for n in (64, 16, 4):
        yield Row("workers", network, scene("async", n, network, gbit, k=4))


def servers(gbit: float, network: str) -> Iterator[Row]:
    """DBA3C's second plot: more servers for 64 workers."""
    for k in (1, 2, 8, 16):
        yield Row("workers", network, scene("servers", 64, network, gbit, k=k))


def backup(exchange: str, k: int) -> Iterator[Row]:
    """Of 64 workers with stragglers."""
    for b in (0, 4, 8, 2):
        yield Row("backup", "dba3c", scene(exchange, 64, "dba3c", 1.0, k=k, b=b), tail=0.5)


def peers(n: int, network: str, mb: float) -> Iterator[Row]:
    """Ours and what a user would pick instead; without and with one straggler, where ours have one backup worker."""
    for slow in (1.0, STRAGGLER):
        b = int(slow > 1)
        ours = [("servers", 4, b, False), ("servers", n, b, True), ("majority", 0, b, False)]
        theirs = [(name, int(other.serve is not None), 0, False) for name, other in PEERS.items()]
        for exchange, k, backups, colocated in ours + theirs:
            yield Row("peers", network, Scene(exchange, n, backups, k, colocated, mb, 1.0), slow=slow)


def everything() -> Iterator[Row]:
    """In the order in which they are measured."""
    yield from calibration()
    yield from peers(16, "small", 1.33)
    yield from workers(1.0, "small")
    yield from method()
    yield from workers(10.0, "small")
    yield from servers(1.0, "small")
    yield from backup("servers", 4)
    yield from backup("majority", 0)
    yield from peers(64, "small", 1.33)
    yield from servers(10.0, "small")
    yield from workers(10.0, "dba3c")
    yield from workers(10.0, "nature")
    yield from asynchronous(10.0, "small")
    yield from workers(1.0, "nature")
    yield from peers(16, "nature", 6.7)


# -- the simulator -----------------------------------------------------------------------------------------------------


def setup_of(scene: Scene) -> Setup:
    return Setup(
        exchange=scene.exchange,  # type: ignore[arg-type]
        workers=scene.workers,
        backup=scene.backup,
        servers=max(1, scene.servers),
        colocated=scene.colocated,
    )


def calibrate(rows: list[dict[str, Any]]) -> dict[str, Cluster]:
    """What this machine's namespaces are like, in its own time, for each family of exchanges."""
    found = {}
    for exchange in CALIBRATION:
        points = [
            MeasuredPoint(
                setup=setup_of(Scene(*(row[name] for name in Scene._fields))),
                model_bytes=row["megabytes"] * 1e6,
                bytes_per_s=row["rate_mbit"] * 1e6 / 8,
                step_s=row["step_ms"] / 1e3,
            )
            for row in rows
            if row["part"] == "calibration" and row["exchange"] == exchange
        ]
        names = ("latency_s", "message_s", "wire_efficiency", "overlap_lost", "link_unfairness")
        cluster = Cluster(bytes_per_s=CALIBRATION_MBIT * 1e6 / 8, wire_efficiency=WIRE_EFFICIENCY)
        found[exchange] = fit(cluster, points, names if exchange != "allreduce" else ("latency_s", "wire_efficiency"))
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


# -- measuring ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def least_dilation(refused: list[dict[str, Any]], key: str) -> int:
    """Twice the D at which this row kept the machine too busy; 0: none did."""
    return max((int(2 * row["dilation"]) for row in refused if row["key"] == key), default=0)


def gradient(parameters: int) -> torch.Tensor:
    """Of the size and about the values of a real one: clipped to a norm of 0.5."""
    drawn = torch.randn(parameters, generator=torch.Generator().manual_seed(SEED))
    return 0.5 * drawn / drawn.norm()


def prepare(row: Row, clusters: dict[str, Cluster], seconds: float) -> tuple[float, int, float, dict[str, float]]:
    """(D, steps, seconds that it will take, the prediction). Raises ConfigError where the machine cannot hold it."""
    cores, times_s = os.cpu_count() or 1, row.times_s()
    slowest_s = float(np.sort(times_s, axis=1)[:, row.scene.gradients - 1].mean())
    dilation = row.dilation or lab.choose_dilation(
        row.scene, slowest_s, cores, least=least_dilation(read(REFUSED), row.key)
    )
    most = lab.MOST_BUSY if row.network else float("inf")  # without compute the wire alone is asked
    lab.check_machine(row.scene, slowest_s, dilation, cores, lab.available_mb(), most)
    guess_s = slowest_s + 1.1 * row.scene.bound_s + 1e-3
    if row.scene.exchange == "async":
        guess_s = max(guess_s, float(times_s.mean()))
    steps = lab.steps_within(seconds if row.network else seconds / 4, guess_s, dilation)
    prediction = predicted(clusters, row, dilation, steps) if clusters and row.scene.exchange in FAMILY else {}
    processes = row.scene.workers + row.scene.servers
    start_s = 4 + (0.15 if row.scene.servers else 0.5) * processes
    return dilation, steps, start_s + (steps + 4) * dilation * guess_s, prediction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for-s", type=float, default=float("inf"), help="begin no row that would end later")
    parser.add_argument("--row-s", type=float, default=12.0, help="that is measured of each row")
    parser.add_argument("--parts", nargs="*", help="only these: calibration, method, workers, backup")
    parser.add_argument("--page", action="store_true", help="measure nothing: put what is there into README.md")
    options = parser.parse_args()
    if options.page:
        renew(
            HERE / "README.md",
            made_by(json.loads((HERE / "meta.json").read_text())),
            *tables(with_marked(read(ROWS), read(REFUSED))),
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that a row's processes and hosts are removed
    try:
        lab.check_privileges()
        lab.take_priority()
        campaign(time.monotonic() + options.for_s, options.row_s, options.parts)
    except ConfigError as error:
        sys.exit(f"error: {error}")


def campaign(until_s: float, row_s: float, parts: list[str] | None) -> None:
    """All rows that are missing and fit into the time."""
    torch.set_num_threads(1)
    clusters: dict[str, Cluster] = {}
    for row in everything():
        rows = read(ROWS)
        given_up = sum(done["key"] == row.key for done in read(REFUSED)) >= ATTEMPTS
        if given_up or any(done["key"] == row.key for done in rows) or (parts and row.part not in parts):
            continue
        if row.part != "calibration" and not clusters:
            clusters = calibrate(rows)
            CALIBRATED.write_text(json.dumps({k: asdict(v) for k, v in clusters.items()}, indent=1) + "\n")
        try:
            dilation, steps, will_take_s, prediction = prepare(row, clusters, row_s)
        except ConfigError as error:
            print(f"{row.key} cannot be measured here: {error}", flush=True)
            continue
        if time.monotonic() + will_take_s > until_s:
            print(f"no time for {row.key}: {will_take_s:.0f} s", flush=True)
            continue
        values = gradient(row.scene.case(1, 1).numel)
        others = PEERS.get(row.scene.exchange)
        measured = lab.measure(row.scene, row.times_s(), dilation, steps, POINTS, values, others)
        of = {"key": row.key, "part": row.part, "network": row.network, "tail": row.tail, "slow": row.slow}
        line = {**of, **measured, **prediction}
        if prediction:
            line["error"] = round(prediction["predicted_ms"] / measured["step_ms"] - 1, 4)
        refused = measured["refused"] and bool(row.network)  # without compute processors are asked, too
        made = facts("python results/cluster/measure.py")
        (HERE / "meta.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        line |= {"date": made["date"], "commit": made["source"].get("commit"), "processor": made["host"]["processor"]}
        append(REFUSED if refused else ROWS, line)
        shown = ("exchange", "workers", "servers", "backup", "megabytes", "gbit", "dilation", "steps", "step_ms")
        more = (
            "predicted_ms",
            "error",
            "bound_ms",
            "slowest_compute_ms",
            "busy_share",
            "exchange_busy",
            "own_share",
            "cpu_ms",
        )
        told = " ".join(f"{name}={line.get(name)}" for name in (*shown, *more, "server_cores", "row_s"))
        print(("REFUSED " if refused else "") + told, flush=True)


if __name__ == "__main__":
    main()
