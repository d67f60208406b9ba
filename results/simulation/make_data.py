"""Simulates what results/plot.py draws, from config.json: python results/simulation/make_data.py (about a minute)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dba3c.simulation.cluster import Cluster, ComputeTimes, Setup, Work
from dba3c.simulation.simulate import simulate
from dba3c.studies.page import write_rows

HERE = Path(__file__).resolve().parent
Row = Sequence[object]


def cluster_of(config: dict[str, Any], gbit: float) -> Cluster:
    """Hosts with links of `gbit`."""
    return Cluster(
        bytes_per_s=gbit * 1e9 / 8,
        latency_s=config["latency_us"] / 1e6,
        wire_efficiency=config["wire_efficiency"],
        message_s=config["message_us"] / 1e6,
    )


def work_of(config: dict[str, Any], compute_ms: float) -> Work:
    times = ComputeTimes(mean_s=compute_ms / 1e3, variation=config["compute_variation"])
    return Work(model_bytes=config["model_bytes"], compute=times, data_points=config["data_points"])


def rate(config: dict[str, Any], gbit: float, compute_ms: float, setup: Setup, as_in_2017: bool) -> float:
    """Data points per second. In 2017 servers sent parameters after the update; ours stream them out before."""
    steps = max(5, config["steps"] * 64 // max(64, setup.workers))
    cluster, setup = cluster_of(config, gbit), replace(setup, cut_through=not as_in_2017)
    return simulate(cluster, work_of(config, compute_ms), setup, steps, config["seed"]).data_points_per_s


def scaling(config: dict[str, Any]) -> Iterator[Row]:
    for gbit in config["bandwidth_gbit"]:
        for compute_ms in config["compute_ms"]:
            one = config["data_points"] / (compute_ms / 1e3)
            for n in config["workers"]:
                backup = round(n * config["backup_share"])
                found = rate(config, gbit, compute_ms, Setup(workers=n, backup=backup, servers=config["servers"]), True)
                minutes = config["minutes_of_one_worker"] * one / found
                yield gbit, compute_ms, n, backup, f"{found:.5g}", f"{minutes:.4g}"


def servers(config: dict[str, Any]) -> Iterator[Row]:
    n = max(config["workers"])
    for gbit in config["bandwidth_gbit"]:
        for compute_ms in config["compute_ms"]:
            for k in config["servers_varied"]:
                as_then = rate(config, gbit, compute_ms, Setup(workers=n, backup=5, servers=k), True)
                streamed = rate(config, gbit, compute_ms, Setup(workers=n, servers=k), False)
                yield gbit, compute_ms, k, f"{as_then:.5g}", f"{streamed:.5g}"


def clusters(config: dict[str, Any]) -> Iterator[Row]:
    compute_ms = 100
    for gbit in config["cluster_bandwidths_gbit"]:
        for nodes in config["nodes_varied"]:
            ways = {
                **({"4 servers": Setup(workers=nodes - 4, servers=4)} if nodes > 4 else {}),
                "16 servers beside workers": Setup(workers=nodes, servers=min(16, nodes), colocated=True),
                "servers on all nodes": Setup(workers=nodes, servers=nodes, colocated=True),
                "all-reduce": Setup(workers=nodes, exchange="allreduce"),
            }
            for name, setup in ways.items():
                found = rate(config, gbit, compute_ms, setup, False)
                alone = config["data_points"] / (compute_ms / 1e3)
                yield gbit, nodes, name, f"{found:.5g}", f"{found / alone / nodes:.4g}"


def main() -> None:
    config = json.loads((HERE / "config.json").read_text())
    tables = {
        "scaling.csv": (("gbit", "compute_ms", "workers", "backup", "data_points_per_s", "minutes_to_300"), scaling),
        "servers.csv": (("gbit", "compute_ms", "servers", "as_in_2017_per_s", "streamed_per_s"), servers),
        "clusters.csv": (("gbit", "nodes", "exchange", "data_points_per_s", "efficiency"), clusters),
    }
    for name, (columns, rows) in tables.items():
        write_rows(HERE / name, [dict(zip(columns, row, strict=True)) for row in rows(config)])


if __name__ == "__main__":
    main()
