"""``dba3c simulate``: what a cluster would do, without the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dba3c.errors import UserError
from launch.cli.options import parse
from launch.cli.simulate_options import SimulateArguments, calibration_of, cluster_of, work_of
from launch.cli.simulate_tables import cells, print_table, write_table

if TYPE_CHECKING:
    from dba3c.simulation.calibration import Calibration
    from dba3c.simulation.cluster import Cluster, Work


def simulate(words: Sequence[str]) -> int:
    """dba3c simulate [OPTIONS]"""
    arguments = parse(SimulateArguments, words, "dba3c simulate")
    cluster = cluster_of(arguments)
    if arguments.validate is not None:
        return _validate(arguments.validate, cluster)
    calibration = calibration_of(arguments)
    if calibration is not None:
        cluster = replace(
            cluster,
            aggregate_bytes_per_s=calibration.aggregate_bytes_per_s,
            apply_bytes_per_s=calibration.apply_bytes_per_s,
        )
    if arguments.central:
        return _central(arguments, cluster, calibration)
    work = work_of(arguments, calibration)
    return _tables(arguments, cluster, work)


def _tables(arguments: SimulateArguments, cluster: Cluster, work: Work) -> int:
    from dba3c.simulation.simulate import best, options

    rows: list[list[object]] = []
    for nodes in arguments.nodes:
        found = options(
            cluster, work, nodes, arguments.servers, arguments.backup_workers, arguments.steps, arguments.seed
        )
        print(
            f"\nSIMULATED: {nodes} nodes, {cluster.bytes_per_s * 8 / 1e9:g} Gbit/s, M {work.model_bytes / 1e6:g} MB, "
            f"a gradient {1e3 * work.compute.mean_s:g} ms. Data points/s (ms a step, dropped):"
        )
        print_table(found, arguments.backup_workers)
        one = best(found)
        print(
            f"best: {one.name}, {one.setup.workers} workers of which {one.setup.backup} backup: "
            f"{one.data_points_per_s:.0f} data points/s (fewer servers win where the difference is below 2 %)"
        )
        rows += [[nodes, *cells(option)] for option in found]
    if arguments.output is not None:
        write_table(arguments.output, rows)
    return 0


def _validate(path: Path, cluster: Cluster) -> int:
    """Exit 0 when every point is within 10 %, 1 when not."""
    from dba3c.simulation.validation import predict, read_points

    checked = [predict(cluster, point) for point in read_points(path)]
    width = max(len(each.point.name) for each in checked)
    print(f"{'':{width}}  measured  SIMULATED  error")
    for each in checked:
        measured_ms, predicted_ms = 1e3 * each.point.step_s, 1e3 * each.predicted_s
        print(f"{each.point.name:{width}}  {measured_ms:8.1f}  {predicted_ms:9.1f}  {each.error:+5.0%}")
    errors = [abs(each.error) for each in checked]
    within = sum(error <= 0.1 for error in errors)
    print(f"{within} of {len(errors)} within 10 %; mean error {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}")
    return 0 if within == len(errors) else 1


def _central(arguments: SimulateArguments, cluster: Cluster, calibration: Calibration | None) -> int:
    from dba3c.simulation.central import compare

    if calibration is None:
        raise UserError("--central needs --run: what stepping, inference and learning cost comes from a run's sections")
    costs, batch = calibration.costs, max(1, round(calibration.work.data_points))
    per_s = [1 / max(value, 1e-12) for value in (costs.environment_s, costs.inference_s, costs.learning_s)]
    print("one core: {:.0f} agent steps/s stepping, {:.0f} inferring, {:.0f} learning".format(*per_s))
    print("SIMULATED data points/s, N nodes as workers against N − 1 of actors + a learner")
    print(f"{'nodes':>6} {'learner (cores)':>16} {'workers':>10} {'central':>10}  wins")
    for nodes in arguments.nodes:
        winners = []
        for speed in arguments.learner_speeds:
            one = compare(cluster, costs, calibration.work.model_bytes, nodes, arguments.node_cores, speed, batch)
            winners += [speed] if one.central_wins else []
            wins = "central" if one.central_wins else "workers"
            print(f"{nodes:>6} {speed:>16g} {one.workers_per_s:>10.0f} {one.central_per_s:>10.0f}  {wins}")
        least = min(winners, default=math.inf)
        verdict = f"from a learner of {least:g} cores on" if winners else "with none of these learners"
        print(f"{nodes} nodes: central inference wins {verdict}")
    return 0
