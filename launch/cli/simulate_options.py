"""The options of ``dba3c simulate``, and the cluster and the work that they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dba3c.errors import UserError

if TYPE_CHECKING:
    from dba3c.simulation.calibration import Calibration
    from dba3c.simulation.cluster import Cluster, Work


@dataclass(frozen=True, kw_only=True)
class SimulateArguments:
    """How many servers and backup workers for a cluster, simulated: dba3c simulate --nodes 64 --bandwidth-gbit 10.

    With --validate it compares the model with measured points instead, with --central it says when central inference
    wins. Everything it prints is simulated, and says so.
    """

    run: tuple[Path, ...] = ()
    """Run folders of one configuration to calibrate the step's work from: compute time, its variation, M, batch."""

    nodes: tuple[int, ...] = (64,)
    """Nodes of the cluster, servers' hosts included; with several, one table for each."""

    bandwidth_gbit: float = 10.0
    """Of each node's link, in each direction, in Gbit/s."""

    latency_us: float = 50.0
    """One way between two processes, in µs."""

    wire_efficiency: float = 0.95
    """Tensor bytes / bytes on the wire."""

    message_us: float = 5.0
    """Processor time of the coordinator for one message, in µs."""

    overlap_lost: float = 0.0
    """Share of an update's transfer that unfair links keep from overlapping with its gradients (see --fit)."""

    link_unfairness: float = 0.0
    """How unevenly n workers share a server's link: standard deviation of the logarithm of a share / √n (see --fit)."""

    megabytes: float | None = None
    """M: gradient bytes / 1e6; 1.33 (the 2017 network) without a run."""

    compute_ms: float | None = None
    """Mean time of a gradient, in ms; 100 without a run."""

    compute_variation: float | None = None
    """Standard deviation / mean of that; 0.1 without a run."""

    straggler_probability: float | None = None
    """Share of gradients that take --straggler-slowdown times as long; 0 without a run."""

    straggler_slowdown: float | None = None
    """By how much; 3 without a run."""

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

    validate: Path | None = None
    """Points measured by `python -m param_servers.benchmarks.exchange` (JSON lines, CSV): predict and compare them."""

    fit: Path | None = None
    """Fit latency, wire efficiency, lost overlap and unfairness to these measured points first."""

    central: bool = False
    """Compare synchronous workers with central inference on the same nodes."""

    node_cores: int = 12
    """Cores of a node, for --central."""

    learner_speeds: tuple[float, ...] = (12.0, 50.0, 200.0, 1000.0, 5000.0)
    """Speeds of the learner's node in cores, for --central."""


def cluster_of(arguments: SimulateArguments) -> Cluster:
    """The cluster that the options describe, or that fits the points of `--fit`. Raises UserError."""
    from dba3c.simulation.cluster import Cluster
    from dba3c.simulation.validation import fit, read_points

    if not arguments.bandwidth_gbit > 0:
        raise UserError(f"--bandwidth-gbit must be greater than 0, got {arguments.bandwidth_gbit:g}")
    cluster = Cluster(
        bytes_per_s=arguments.bandwidth_gbit * 1e9 / 8,
        latency_s=arguments.latency_us / 1e6,
        wire_efficiency=arguments.wire_efficiency,
        message_s=arguments.message_us / 1e6,
        overlap_lost=arguments.overlap_lost,
        link_unfairness=arguments.link_unfairness,
    )
    if arguments.fit is None:
        return cluster
    fitted = fit(cluster, read_points(arguments.fit))
    print(
        f"fitted to {arguments.fit}: --latency-us {fitted.latency_s * 1e6:.0f} --wire-efficiency "
        f"{fitted.wire_efficiency:.3f} --overlap-lost {fitted.overlap_lost:.2f} "
        f"--link-unfairness {fitted.link_unfairness:.2f}"
    )
    return fitted


def calibration_of(arguments: SimulateArguments) -> Calibration | None:
    """What the runs of `--run` say of a step's work, told in a line; None without a run."""
    from dba3c.simulation.calibration import calibrate

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
    from dba3c.simulation.cluster import ComputeTimes, Work

    known = calibration.work if calibration is not None else Work(
        model_bytes=1.33e6, compute=ComputeTimes(mean_s=0.1, variation=0.1, straggler_slowdown=3.0), data_points=32
    )  # fmt: skip
    compute = replace(
        known.compute,
        mean_s=_either(arguments.compute_ms, known.compute.mean_s * 1e3) / 1e3,
        variation=_either(arguments.compute_variation, known.compute.variation),
        samples_s=known.compute.samples_s if arguments.compute_variation is None else (),
        straggler_probability=_either(arguments.straggler_probability, known.compute.straggler_probability),
        straggler_slowdown=_either(arguments.straggler_slowdown, known.compute.straggler_slowdown),
    )
    return Work(
        model_bytes=_either(arguments.megabytes, known.model_bytes / 1e6) * 1e6,
        compute=compute,
        data_points=_either(arguments.data_points, known.data_points),
    )


def _either(given: float | None, known: float) -> float:
    return known if given is None else given
