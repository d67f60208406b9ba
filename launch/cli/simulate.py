"""``dba3c simulate``: what a cluster would do, without the cluster."""

import contextlib
import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.runs.files import write_atomically
from dba3c.runs.folder import RunFolder
from dba3c.simulation.calibration import Calibration, calibrate
from dba3c.simulation.cluster import Cluster, ComputeTimes, Outcome, Setup, Work
from dba3c.simulation.simulate import best, compare, options
from launch.cli.options import parse, refuse_given

COLUMNS = (
    "nodes", "exchange", "servers", "colocated", "workers", "backup", "step_ms", "data_points_per_s", "dropped_share",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SimulateArguments:
    """How many servers and backup workers for a cluster, simulated: dba3c simulate --nodes 64 --bandwidth-gbit 10.

    With --central it says when central inference wins instead. Everything it prints is simulated, and says so.
    """

    run: tuple[Path, ...] = ()
    """Run folders of one configuration to calibrate the step's work from: compute time, its variation, M, batch."""

    nodes: tuple[int, ...] = (64,)
    """Nodes of the cluster, servers' hosts included; with several, one table for each."""

    bandwidth_gbit: float = 10.0
    """Of each node's link, in each direction, in Gbit/s."""

    latency_us: float = 50.0
    """One way between two processes, in µs."""

    megabytes: float | None = None
    """M: gradient bytes / 1e6; 1.33 (the 2017 network) without a run."""

    compute_ms: float | None = None
    """Mean time of a gradient, in ms; 100 without a run."""

    compute_variation: float | None = None
    """Standard deviation / mean of that; 0.1 without a run."""

    straggler_probability: float | None = None
    """Share of gradients that take --straggler-slowdown times as long; 0 without a run."""

    straggler_slowdown: float | None = None
    """By how much; 3 without a run, or with one that had no stragglers."""

    data_points: float | None = None
    """In one gradient; 32 without a run."""

    servers: tuple[int, ...] = (1, 2, 4, 8, 16)
    """k to try."""

    backup_workers: tuple[int, ...] = (0, 1, 2, 4)
    """b to try."""

    steps: int = 50
    """Simulated steps of each case."""

    seed: int = 0
    """Of the compute times."""

    output: Path | None = None
    """Write the table there as CSV too."""

    central: bool = False
    """Compare synchronous workers with central inference on the same nodes."""

    node_cores: int = 12
    """Cores of a node, for --central."""

    learner_speeds: tuple[float, ...] = (12.0, 50.0, 200.0, 1000.0, 5000.0)
    """Speeds of the learner's node in cores, for --central."""


def simulate(words: Sequence[str]) -> int:
    """dba3c simulate [OPTIONS]"""
    arguments = parse(SimulateArguments, words, "dba3c simulate")
    if arguments.seed < 0:
        raise UserError(f"--seed must not be negative, got {arguments.seed}")
    if arguments.central:
        refuse_given(
            arguments, OF_THE_TABLE, "of the table of servers and backup workers, which --central does not make"
        )
    else:
        refuse_given(arguments, ("node_cores", "learner_speeds"), "of --central, which is not given")
    cluster = cluster_of(arguments)
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
    least = min(arguments.backup_workers, default=0)
    for k in arguments.servers if arguments.servers != SimulateArguments.servers else ():
        if left_out := [str(nodes) for nodes in arguments.nodes if nodes - k <= least]:
            warn_on_stderr(f"{k} servers leave no worker on {' and '.join(left_out)} nodes: left out")
    rows: list[Sequence[object]] = [COLUMNS]
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
            f"best: {one}, {one.workers} workers of which {one.backup} backup: {found[one].data_points_per_s:.0f} data "
            "points/s (fewer servers win where the difference is below 2 %)"
        )
        rows += [[nodes, *cells(setup, outcome)] for setup, outcome in found.items()]
    if arguments.output is not None:
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(rows)
        with writing(arguments.output):
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.output, table.getvalue())
    return 0


OF_THE_TABLE = (
    "compute_ms", "compute_variation", "straggler_probability", "straggler_slowdown", "data_points", "servers",
    "backup_workers", "steps", "seed", "output",
)  # fmt: skip
"""Options of the table of servers and backup workers, which --central does not make."""


def _observation_bytes(run: Path) -> float:
    """Of an agent step, as an actor sends it: a frame, where the learner stacks them."""
    config = RunFolder.open(run).train_config().environment
    with contextlib.closing(make_vector_environment(config, num_envs=1, seed=0)) as environments:
        space: Any = environments.observation_space
        return float(math.prod(space.shape) * space.dtype.itemsize / config.frames_per_observation)


def _central(arguments: SimulateArguments, cluster: Cluster, calibration: Calibration | None) -> int:
    if calibration is None:
        raise UserError("--central needs --run: what stepping, inference and learning cost comes from a run's sections")
    costs = replace(calibration.costs, observation_bytes=_observation_bytes(arguments.run[0]))
    batch = max(1, round(calibration.work.data_points))
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
        where = f"from a learner of {least:g} cores on" if winners else "with none of these learners"
        print(f"{nodes} nodes: central inference wins {where}")
    return 0


def cluster_of(arguments: SimulateArguments) -> Cluster:
    """The cluster that the options describe. Raises UserError."""
    if not arguments.bandwidth_gbit > 0:
        raise UserError(f"--bandwidth-gbit must be greater than 0, got {arguments.bandwidth_gbit:g}")
    return Cluster(
        bytes_per_s=arguments.bandwidth_gbit * 1e9 / 8,
        latency_s=arguments.latency_us / 1e6,
        wire_efficiency=0.95,  # headers of Ethernet, IP and TCP
        message_s=5e-6,  # of the coordinator's processor
    )


def calibration_of(arguments: SimulateArguments) -> Calibration | None:
    """What the runs of `--run` say of a step's work, told in a line; None without a run."""
    if not arguments.run:
        return None
    size = None if arguments.megabytes is None else arguments.megabytes * 1e6
    found = calibrate(arguments.run, size)
    compute = found.work.compute
    print(
        f"{found.steps} gradients measured: {1e3 * compute.mean_s:.1f} ms ± {compute.variation:.0%} between steps, "
        f"± {compute.worker_variation:.0%} between workers, {compute.straggler_probability:.2%} stall for "
        f"{compute.straggler_slowdown:.1f} times that; {found.work.data_points:.0f} data points, "
        f"M {found.work.model_bytes / 1e6:.3f} MB"
    )
    return found


def work_of(arguments: SimulateArguments, calibration: Calibration | None) -> Work:
    """A worker's share of a step: what the options say, else what was measured, else the 2017 network's."""
    known = calibration.work if calibration is not None else Work(
        model_bytes=1.33e6, compute=ComputeTimes(mean_s=0.1, variation=0.1, straggler_slowdown=3.0), data_points=32
    )  # fmt: skip
    slowdown = known.compute.straggler_slowdown
    if arguments.straggler_probability is not None and slowdown == 1.0:  # the run had none to measure
        slowdown = 3.0
    compute = replace(
        known.compute,
        mean_s=_either(arguments.compute_ms, known.compute.mean_s * 1e3) / 1e3,
        variation=_either(arguments.compute_variation, known.compute.variation),
        samples_s=known.compute.samples_s if arguments.compute_variation is None else (),
        straggler_probability=_either(arguments.straggler_probability, known.compute.straggler_probability),
        straggler_slowdown=_either(arguments.straggler_slowdown, slowdown),
    )
    if arguments.straggler_slowdown is not None and not compute.straggler_probability:
        raise UserError("--straggler-slowdown changes nothing while nobody is late: say --straggler-probability, too")
    return Work(
        model_bytes=_either(arguments.megabytes, known.model_bytes / 1e6) * 1e6,
        compute=compute,
        data_points=_either(arguments.data_points, known.data_points),
    )


def _either(given: float | None, known: float) -> float:
    return known if given is None else given


def cells(setup: Setup, outcome: Outcome) -> list[object]:
    """A row of `COLUMNS` but the first."""
    servers = setup.servers if setup.exchange in ("servers", "async") else 0
    numbers = [f"{1e3 * outcome.step_s:.4g}", f"{outcome.data_points_per_s:.6g}", f"{outcome.dropped_share:.4g}"]
    return [setup.exchange, servers, int(setup.colocated), setup.workers, setup.backup, *numbers]


def print_table(found: Mapping[Setup, Outcome], backups: Sequence[int]) -> None:
    """Exchanges down, backup workers across."""
    rows: dict[str, dict[int, str]] = {}
    for setup, outcome in found.items():
        told = f"{outcome.data_points_per_s:.0f} ({1e3 * outcome.step_s:.1f} ms, {outcome.dropped_share:.0%})"
        rows.setdefault(str(setup), {})[setup.backup] = told
    print(f"{'':>24}" + "".join(f"{f'b = {backup}':>26}" for backup in backups))
    for name, told_of in rows.items():
        print(f"{name:>24}" + "".join(f"{told_of.get(backup, '-'):>26}" for backup in backups))
