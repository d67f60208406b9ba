"""256 to 4,096 nodes, SIMULATED: python results/cluster/beyond.py (a minute). Writes the table of docs/scaling.md.

What a node computes is recorded (`compute_times.csv`), what servers and ranks need of a processor was measured and not
dilated (`processors.jsonl`); what a cluster of so many nodes makes of that is the simulator's, which was checked up to
64 nodes (README.md here).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from central_lab import CentralScene, predicted_points_per_s
from headline import PROCESSORS
from lab import CORES, node_times_s
from numpy.typing import NDArray
from plan import ENVIRONMENTS, LENGTH_STEPS, REDUCTION_MS, SEED, TIMES, CentralRow, megabytes, recorded_s
from time_to_score import SWITCH_US

from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.simulate import ring_s, simulate_times
from dba3c.studies.page import markdown, renew, rows_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
NODES, GBIT = (64, 256, 1024, 4096), 10.0
SERVERS, GROUP, STEPS = 16, 64, 8
BACKUP_OF = 16
"""So many workers have one backup worker among them, with a majority."""
LEARNER_CORES = 100.0
NETWORK = "small"
POINTS = CORES * ENVIRONMENTS * LENGTH_STEPS
LEAST_RING = 15
"""Workers of the rings that are fitted: a round of smaller ones takes longer, and they are not what is asked here."""


class Processors(NamedTuple):
    """What was measured, as straight lines through it (least squares)."""

    server_s: float
    """Of a server for a step, whatever its bytes."""
    message_s: float
    """Of shard 0, for a gradient that a shard tells it of."""
    bytes_per_s: float
    """Of gradients that a server takes, adds up and answers with parameters."""
    rank_s: float
    """Of a rank of an all-reduce, whatever the rounds."""
    round_s: float

    @classmethod
    def measured(cls) -> Processors:
        served = [line for line in rows_of(PROCESSORS) if line["exchange"] == "servers"]
        rings = (line for line in rows_of(PROCESSORS) if line["exchange"] == "allreduce")
        summed = [line for line in rings if line["workers"] >= LEAST_RING]
        loads = [(1, s["workers"] * s["servers"], s["workers"] / s["servers"] * 1e6 * s["megabytes"]) for s in served]
        rounds = [(1, 2 * (s["workers"] - 1)) for s in summed]
        server_s, message_s, byte_s = _fit(loads, [s["server_ms"] / 1e3 for s in served])
        rank_s, round_s = _fit(rounds, [s["worker_ms"] / 1e3 for s in summed])
        return cls(server_s, message_s, 1 / byte_s, rank_s, round_s)

    def table(self) -> str:
        told = (
            ("a step of a server", f"{1e3 * self.server_s:.1f} ms"),
            ("a gradient's entry, read by the first server", f"{1e6 * self.message_s:.1f} µs"),
            ("a megabyte of gradients, to parameters that are sent", f"{1e9 / self.bytes_per_s:.2f} ms"),
            ("a step of a rank of all-reduce", f"{1e3 * self.rank_s:.1f} ms"),
            ("a round of its ring", f"{1e6 * self.round_s:.0f} µs"),
        )
        return markdown(("of a processor", "takes"), told)


def _fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    scale = np.abs(np.array(columns)).max(axis=0)
    found, *_ = np.linalg.lstsq(np.array(columns) / scale, np.array(seconds), rcond=None)
    return [float(value) for value in found / scale]


class Way(NamedTuple):
    """One way to exchange, with what each part of it would take alone, in seconds."""

    name: str
    workers: int
    step_s: float
    parts: dict[str, float]


def ways(nodes: int, gbit: float, costs: Processors) -> Iterator[Way]:
    """All that are compared."""
    model_bytes, bytes_per_s = 1e6 * megabytes(NETWORK), 1e9 * gbit / 8
    times_s = node_times_s(recorded_s(TIMES, NETWORK, ENVIRONMENTS), REDUCTION_MS[NETWORK] / 1e3, STEPS, nodes, SEED)
    slowest_s = float(times_s.max(axis=1).mean())
    wire = {"latency_s": SWITCH_US / 1e6, "wire_efficiency": 0.95}
    servers = Cluster(
        bytes_per_s=bytes_per_s, message_s=costs.message_s, aggregate_bytes_per_s=costs.bytes_per_s, **wire
    )
    ring = Cluster(bytes_per_s=bytes_per_s, latency_s=SWITCH_US / 1e6 + costs.round_s, wire_efficiency=0.95)
    work = Work(model_bytes=model_bytes, compute=ComputeTimes(mean_s=float(times_s.mean())), data_points=POINTS)

    def served_s(n: int, k: int, beside: bool, compute_s: NDArray[np.float64]) -> float:
        """A server's bytes and messages are one processor's, which the simulator has one after the other."""
        setup = Setup(workers=n, servers=k, colocated=beside)
        alone_s = costs.server_s + n / k * model_bytes / costs.bytes_per_s + n * k * costs.message_s
        compute_mean_s = float(compute_s.max(axis=1).mean())
        return max(simulate_times(servers, work, setup, compute_s, STEPS).step_s, compute_mean_s + alone_s)

    for k, beside in ((SERVERS, False), (SERVERS, True), (nodes, True)):
        n = nodes if beside else nodes - k  # dedicated servers are some of the nodes
        parts = {
            "the slowest node": slowest_s,
            "the wire": n / k * model_bytes / bytes_per_s,
            "a server's bytes": n / k * model_bytes / costs.bytes_per_s,
            "entries read by the first server": n * k * costs.message_s,
        }
        name = f"{k} servers{' beside' if beside else ''}" if k == SERVERS else "a server on every node"
        yield Way(name, n, served_s(n, k, beside, times_s[:, :n]), parts)
    rounds_s = 2 * (nodes - 1) * ring.latency_s
    parts = {"the slowest node": slowest_s, "the wire": 2 * model_bytes / bytes_per_s, "rounds of the ring": rounds_s}
    yield Way("all-reduce, one ring", nodes, slowest_s + costs.rank_s + ring_s(ring, work, nodes), parts)
    members = Setup(exchange="majority", workers=nodes, backup=nodes // BACKUP_OF)
    decided = replace(ring, message_s=costs.message_s)
    majority_s = costs.rank_s + simulate_times(decided, work, members, times_s).step_s
    parts = {**parts, "the slowest node": float(np.sort(times_s, axis=1)[:, members.gradients - 1].mean())}
    yield Way(f"majority, b = n / {BACKUP_OF}", members.gradients, majority_s, parts)
    actors = CentralScene(nodes, CORES * ENVIRONMENTS, LEARNER_CORES, gbit, LENGTH_STEPS)
    points, of_a_step = actors.points_per_update, CentralRow(NETWORK, actors).costs()
    parts = {
        "the learner's processors": points * (of_a_step.inference_s + of_a_step.learning_s) / LEARNER_CORES,
        "the learner's link": actors.bound_s,
    }
    central_s = points / predicted_points_per_s(actors, of_a_step)
    yield Way(f"central inference, a learner worth {LEARNER_CORES:g} cores", nodes, central_s, parts)
    groups = nodes // GROUP
    if groups > 1:
        idle = np.zeros((STEPS, GROUP))
        tree_s = served_s(GROUP, SERVERS, True, idle) + served_s(groups, min(SERVERS, groups), True, idle[:, :groups])
        yield Way(f"servers in two levels, groups of {GROUP}", nodes, slowest_s + tree_s, {})
        part = Work(model_bytes=model_bytes / GROUP, compute=work.compute, data_points=POINTS)
        rings_s = ring_s(ring, work, GROUP) + ring_s(ring, part, groups)
        yield Way(f"all-reduce in two levels, groups of {GROUP}", nodes, slowest_s + 2 * costs.rank_s + rings_s, {})


def main() -> None:
    """See the module."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    costs, table = Processors.measured(), []
    alone_s = float(recorded_s(TIMES, NETWORK, ENVIRONMENTS).mean())
    for nodes in NODES:
        for way in ways(nodes, GBIT, costs):
            longest = max(way.parts, key=lambda name: way.parts[name]) if way.parts else "–"
            rate, share = way.workers * POINTS / way.step_s, alone_s / way.step_s * way.workers / nodes
            step = f"{1e3 * way.step_s:,.0f}"
            table.append([nodes, way.name, step, f"{rate / 1e3:,.0f}", f"{share:.1%}", longest])
    columns = ["nodes", "exchange", "step, ms", "1,000 data points/s", "of lanes that never wait", "takes longest"]
    renew(PAGE, "", costs.table(), markdown(columns, table))


if __name__ == "__main__":
    main()
