"""Draws the simulated counterparts of DBA3C's scaling and server plots, from the CSV files beside it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from dba3c.benchmarks.simulator_validation import draw as draw_validation
from dba3c.studies.figures import IDEAL, draw_simulated, finish, new_figure, save

HERE = Path(__file__).resolve().parent


def table(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scaling(config: dict[str, float]) -> None:
    figure, axes = new_figure()
    rows = [row for row in table("scaling.csv") if row["gbit"] == "10"]
    for index, compute_ms in enumerate(dict.fromkeys(row["compute_ms"] for row in rows)):
        mine = [row for row in rows if row["compute_ms"] == compute_ms]
        x, y = [float(row["workers"]) for row in mine], [float(row["minutes_to_300"]) for row in mine]
        draw_simulated(axes, x, y, f"10 Gbit/s, {compute_ms} ms a batch", index)
    axes.plot(x, [config["minutes_of_one_worker"] / n for n in x], label="theoretical", **IDEAL)
    axes.plot([64], [config["reported_minutes"]], "*", color="black", markersize=12, label="DBA3C 2017 (reported)")
    finish(axes, "workers of 12 cores", "minutes to a mean score of 300", x, log=True)
    save(figure, HERE / "scaling")


def servers() -> None:
    figure, axes = new_figure()
    rows = [row for row in table("servers.csv") if row["gbit"] == "10"]
    for index, compute_ms in enumerate(dict.fromkeys(row["compute_ms"] for row in rows)):
        mine = [row for row in rows if row["compute_ms"] == compute_ms]
        x = [float(row["servers"]) for row in mine]
        draw_simulated(axes, x, [float(row["as_in_2017_per_s"]) for row in mine], f"{compute_ms} ms a batch", index)
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.set_xscale("log", base=2)
    finish(axes, "parameter servers (65 workers, 60 gradients, 10 Gbit/s)", "data points/s", x)
    save(figure, HERE / "servers")


def clusters() -> None:
    figure, axes = new_figure()
    rows = [row for row in table("clusters.csv") if row["gbit"] == "10"]
    for index, exchange in enumerate(dict.fromkeys(row["exchange"] for row in rows)):
        mine = [row for row in rows if row["exchange"] == exchange]
        x = [float(row["nodes"]) for row in mine]
        draw_simulated(axes, x, [float(row["efficiency"]) for row in mine], exchange, index)
    axes.set_xscale("log", base=2)
    every_x = [float(row["nodes"]) for row in rows]
    finish(axes, "nodes (10 Gbit/s, 100 ms a batch)", "data points/s per node, a worker alone = 1", every_x)
    save(figure, HERE / "clusters")


def central() -> None:
    figure, axes = new_figure()
    rows = [row for row in table("central.csv") if row["nodes"] in ("4", "64")]
    for index, (network, nodes) in enumerate(dict.fromkeys((row["network"], row["nodes"]) for row in rows)):
        mine = [row for row in rows if (row["network"], row["nodes"]) == (network, nodes)]
        x = [float(row["learner_cores"]) for row in mine]
        y = [float(row["central_per_s"]) / float(row["workers_per_s"]) for row in mine]
        draw_simulated(axes, x, y, f"{network} network, {nodes} nodes", index)
    axes.axhline(1.0, label="equal", **IDEAL)
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes, "speed of the learner's node, in cores", "data points/s: central inference / workers", x)
    axes.tick_params(axis="x", labelsize=8)
    save(figure, HERE / "central")


if __name__ == "__main__":
    scaling(json.loads((HERE / "config.json").read_text()))
    servers()
    clusters()
    if (HERE / "central.csv").exists():
        central()
    if (HERE / "validation.csv").exists():
        draw_validation(HERE)
