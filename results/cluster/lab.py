"""A cluster that one machine stands for, by time dilation: computing and the network are slowed by the same factor D.

The lab of results/cluster, whose campaign asks it for one row after the other. Root only: hosts are network namespaces
whose links have the rate / D. Workers take their gradient after the time that a node of `CORES` lanes would need × D.
Processes, sockets, bytes and the exchange are the real ones (`exchange.run`), and every time measured, divided by D, is
the cluster's (Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006). What is not slowed is
D times too cheap: the processors (hence `server_cores`, `worker_cores`: what the busiest process would need of a real
host's), the switch's delay, and the kernel's timers.

D is chosen so that the machine will be at most 60 % busy while gradients are exchanged; a row whose processes took more
than that on average, or one of them more than half a core, says so (`refused`). They have real-time priority, so that
whatever else runs here, which `busy_share` tells, waits for them and not they for it.
"""

import math
import os
import shutil
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from param_servers.benchmarks.exchange import Case, Measured, Others, Worked, dedicated_servers_s, ring_s, run
from param_servers.benchmarks.hosts import Fault
from param_servers.errors import ConfigError, PeerLost

CORES = 12
"""Lanes of a node: DBA3C's."""
DILATIONS = (1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560)
MOST_BUSY = 0.6
"""Of the processors: of a whole row, and, as expected, while gradients are exchanged."""
MOST_OF_A_CORE = 0.5
"""Of a row's busiest process. A server that 64 workers send 2.7 MB took 0.64 of a core at D = 5 and had 0.71 of its
link; at D = 20, 0.33 and 0.86: the core was measured, not the wire, though all in all the machine was half idle."""
CPU_S_PER_GB, CPU_S_PER_GB_OF_SUMS = 9.0, 5.5
"""Of both ends, the switch between them and what is done with the bytes: the dearest that was seen here."""
CPU_S_PER_PROCESS = 0.0015
"""Of a process and step, whatever its bytes."""
MEGABYTES_PER_PROCESS = 90
QUEUE_BYTES = 1_000_000
"""Of the switch for each host, whatever D. As much as leaves in a fixed time would be less at slower links, until
packets are lost, and what is lost waits for timers of the kernel, which are not dilated."""
SLOWEST_MBIT, FASTEST_MBIT = 1.0, 1000.0
"""Below, one TCP segment takes longer than its connection's timers; above, two namespaces on one machine are slower."""
FASTEST_CHOSEN_MBIT = 250.0
"""Of a D that is chosen. What reaches one host is one core's work in the kernel, too: a server that 64 workers send
6.7 MB had 0.68 of a link of 500 Mbit/s and 0.90 of one of 250."""


class Scene(NamedTuple):
    """A cluster and what it does, in the cluster's own time."""

    exchange: str
    workers: int
    """n, nodes that compute, backup workers included."""
    backup: int
    servers: int
    colocated: bool
    megabytes: float
    gbit: float
    """Of a host's link, in each direction."""

    def case(self, dilation: float, steps: int) -> Case:
        """What is measured of it on this machine."""
        rate_mbit = 1e3 * self.gbit / dilation
        shape = (self.exchange, self.megabytes, self.workers, self.backup, self.servers)
        return Case(*shape, rate_mbit, steps, self.colocated, QUEUE_BYTES)

    @property
    def gradients(self) -> int:
        """Of a step."""
        return 1 if self.exchange == "async" else self.workers - self.backup

    @property
    def bound_s(self) -> float:
        """Least time of a step on the wire (BytePS); of an asynchronous one, of as many as there are workers."""
        model_bytes, bytes_per_s = 1e6 * self.megabytes, 1e9 * self.gbit / 8
        if not self.servers:
            return ring_s(model_bytes, self.workers, bytes_per_s)
        if self.colocated:  # on some hosts: n/k of a server's own links, and the worker's beside it
            share = max(0.0, (self.workers + self.servers - 2) / self.servers)
            return model_bytes / bytes_per_s * share
        return dedicated_servers_s(model_bytes, self.workers, self.servers, bytes_per_s)

    @property
    def bytes_per_step(self) -> float:
        """That pass a switch when each worker has pushed and pulled once."""
        everybody = 2 * self.workers if self.servers else 2 * (self.workers - 1)
        return 1e6 * self.megabytes * everybody

    @property
    def cpu_s_per_step(self) -> float:
        """That this machine is expected to need."""
        control = self.workers * self.servers * 1e-4
        """Every shard tells shard 0 of every gradient."""
        per_gb_s = CPU_S_PER_GB if self.servers else CPU_S_PER_GB_OF_SUMS
        return self.bytes_per_step / 1e9 * per_gb_s + (self.workers + self.servers) * CPU_S_PER_PROCESS + control


def node_times_s(
    lane_s: NDArray[np.float64], reduction_s: float, steps: int, workers: int, seed: int, tail: float = 0.0
) -> NDArray[np.float64]:
    """Seconds from parameters to a node's gradient, [steps, workers] float64.

    Args:
        lane_s: [samples] recorded times of one lane's rollout on one core; a node waits for the slowest of CORES drawn.
        reduction_s: to add up the lanes' gradients.
        tail: sigma of a lognormal factor of median 1 on each node's time; 0: none.

    The first n workers' times are the same whatever `workers` is.
    """
    times_s = np.empty((steps, workers))
    for worker, stream in enumerate(np.random.SeedSequence(seed).spawn(workers)):
        random = np.random.default_rng(stream)
        slowest_s = random.choice(lane_s, (steps, CORES)).max(axis=1)
        times_s[:, worker] = (slowest_s + reduction_s) * np.exp(tail * random.standard_normal(steps))
    return times_s


# -- what this machine can stand for -----------------------------------------------------------------------------------


def expected_busy(scene: Scene, compute_s: float, dilation: float, cores: int) -> float:
    """Share of the processors while gradients are exchanged: for the wire's bound or, without a wire, `compute_s`.

    That they idle while workers sleep is no help: what is slower than the wire would be measured, not the wire."""
    return scene.cpu_s_per_step / (cores * dilation * (scene.bound_s or compute_s or math.inf))


def choose_dilation(scene: Scene, compute_s: float, cores: int, least: int = 0) -> int:
    """The smallest of DILATIONS, at least `least`, that leaves the machine idle enough.

    Raises:
        ConfigError: not even the largest does.
    """
    for dilation in DILATIONS:
        slow_enough = dilation >= max(least, 1e3 * scene.gbit / FASTEST_CHOSEN_MBIT)
        if slow_enough and expected_busy(scene, compute_s, dilation, cores) <= MOST_BUSY:
            return dilation
    raise ConfigError(_arithmetic(scene, compute_s, DILATIONS[-1], cores, MOST_BUSY))


def check_machine(
    scene: Scene, compute_s: float, dilation: float, cores: int, available_mb: float, most_busy: float = MOST_BUSY
) -> None:
    """Raises ConfigError, with the arithmetic, where this machine cannot hold the scene at this D."""
    case = scene.case(dilation, 1)
    if not SLOWEST_MBIT <= case.rate_mbit <= FASTEST_MBIT:
        raise ConfigError(
            f"{scene.gbit:g} Gbit/s / {dilation:g} = {case.rate_mbit:g} Mbit/s for each host, "
            f"but this emulation holds {SLOWEST_MBIT:g} to {FASTEST_MBIT:g}"
        )
    processes = scene.workers + scene.servers
    need_mb = processes * (MEGABYTES_PER_PROCESS + 4 * scene.megabytes)
    if need_mb > available_mb:
        raise ConfigError(
            f"{processes} processes × ({MEGABYTES_PER_PROCESS} + 4 × {scene.megabytes:g}) MB = {need_mb:.0f} MB, "
            f"but {available_mb:.0f} MB are free"
        )
    if expected_busy(scene, compute_s, dilation, cores) > most_busy:
        raise ConfigError(_arithmetic(scene, compute_s, dilation, cores, most_busy))


def _arithmetic(scene: Scene, compute_s: float, dilation: float, cores: int, most_busy: float) -> str:
    return (
        f"an exchange takes {scene.cpu_s_per_step:.2f} s of processor and, at D = {dilation:g}, "
        f"{dilation:g} × {1e3 * (scene.bound_s or compute_s):.1f} ms: {cores} cores would be "
        f"{expected_busy(scene, compute_s, dilation, cores):.0%} busy, and at most {most_busy:.0%} are asked"
    )


def check_privileges() -> None:
    """Raises ConfigError without root or iproute2."""
    if os.geteuid() != 0:
        raise ConfigError("network namespaces need root")
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if missing := [name for name in ("ip", "tc") if shutil.which(name, path=path) is None]:
        raise ConfigError(f"{' and '.join(missing)} of iproute2 not found")


def take_priority() -> bool:
    """This process and those that it forks run before all that have ordinary priority. Needs root.

    Returns: whether; False where a control group has no time for such processes.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


# -- one row -----------------------------------------------------------------------------------------------------------


def steps_within(seconds: float, step_s: float, dilation: float) -> int:
    """So many steps of a row are measured: at least 6, at most 100."""
    return max(6, min(100, round(seconds / (dilation * step_s))))


def measure(
    scene: Scene,
    times_s: NDArray[np.float64],
    dilation: float,
    steps: int,
    points: int,
    gradient: torch.Tensor | None = None,
    others: Others | None = None,
    fault: Fault | None = None,
) -> dict[str, Any]:
    """One row, in the cluster's time.

    Args:
        times_s: [rows, n] seconds; worker w computes on version v for times_s[v % rows, w] × D.
        points: data points of a gradient.
        gradient: [P] float32 that is pushed; None: a constant.
        others: somebody else's exchange, called `scene.exchange`.
        fault: the row is then of the steps before it, and `through` says what came after.
    """
    case, began_s = scene.case(dilation, steps), time.monotonic()
    case = case._replace(longest_compute_s=dilation * float(times_s.max()))
    rows = len(times_s)
    per_row = scene.workers if scene.exchange == "async" else 1
    slowest_s = float(np.sort(times_s, axis=1)[:, max(0, scene.gradients - 1)].mean())
    compute = lambda w, step: time.sleep(dilation * times_s[step // per_row % rows, w])  # noqa: E731
    measured = run(case, compute, gradient, others, fault)
    after = {} if fault is None else through(measured, fault, dilation)
    if fault is not None:
        measured = before(measured)
    return {
        **scene._asdict(),
        "dilation": dilation,
        "rate_mbit": case.rate_mbit,
        "queue_bytes": case.queue_bytes,
        "steps": steps,
        "compute_ms": round(1e3 * float(times_s.mean()), 3),
        "slowest_compute_ms": round(1e3 * slowest_s, 3),
        "bound_ms": round(1e3 * scene.bound_s, 3),
        **found(scene, case, measured, dilation, points),
        **after,
        "congestion_control": measured.congestion_control,
        "row_s": round(time.monotonic() - began_s, 1),
    }


def found(scene: Scene, case: Case, measured: Measured, dilation: float, points: int) -> dict[str, Any]:
    """What the processes saw after the warm-up, divided by D."""
    means_s, dropped, pushed = [], 0, 0
    for worker in measured.workers:
        pulls = [pull for pull in worker.pulls if pull[0] >= case.warm_up]
        if len(pulls) > 1:
            (first, began_s), (last, ended_s) = pulls[0], pulls[-1]
            means_s.append((ended_s - began_s) / (last - first))
        answers = worker.accepted[len(worker.accepted) - len(pulls) :]
        dropped, pushed = dropped + answers.count(False), pushed + len(answers)
    step_s = statistics.median(means_s) / dilation
    load = measured.workers[0].load
    assert load is not None
    cores = [seconds * dilation / load.elapsed_s for seconds in load.cpu_s]
    row = {
        "step_ms": round(1e3 * step_s, 3),
        "data_points_per_s": round(scene.gradients * points / step_s, 1),
        "dropped_share": round(dropped / max(1, pushed), 4),
        "busy_share": round(load.busy_share, 3),
        "own_share": round(load.own_share, 3),
        "others_share": round(load.others_share, 3),
        "server_cores": round(max(cores[: scene.servers], default=math.nan), 2) if scene.servers else None,
        "worker_cores": round(max(cores[scene.servers :]), 2),
        "cpu_ms": round(1e3 * sum(load.cpu_s) / load.elapsed_s * step_s * dilation, 1),
    }
    return row | {"refused": too_busy({**row, "dilation": dilation})}


def too_busy(row: dict[str, Any]) -> bool:
    """Whether this machine's processors were measured in a row, not the cluster."""
    busiest_cores = max(row.get("server_cores") or 0.0, row.get("worker_cores") or 0.0)
    of_a_core = busiest_cores / row["dilation"] if row["dilation"] > 1 else 0.0  # undilated, what it needs is real
    return bool(row["own_share"] > MOST_BUSY or of_a_core > MOST_OF_A_CORE)


def before(measured: Measured) -> Measured:
    """What was seen until the fault."""

    def early(worker: Worked) -> Worked:
        until = sum(at_s <= (measured.struck_s or math.inf) for _, at_s in worker.pulls)
        return worker._replace(pulls=worker.pulls[:until], accepted=worker.accepted[:until])

    return measured._replace(workers=[early(worker) for worker in measured.workers])


def through(measured: Measured, fault: Fault, dilation: float) -> dict[str, Any]:
    """The run through the event, as worker 0 saw it: `through_ms`, [milliseconds since it happened, step] of each
    pull, in the cluster's time, and why it `ended`. Raises PeerLost if it ended before."""
    worker = measured.workers[0]
    if measured.struck_s is None:
        raise PeerLost(f"the case ended before step {fault.at_step}, when something was to happen: {worker.ended}")
    times = [(1e3 * (at_s - measured.struck_s) / dilation, step) for step, at_s in worker.pulls]
    times.append((1e3 * (worker.ended_s - measured.struck_s) / dilation, worker.pulls[-1][0]))
    return {
        "fault": fault.kind,
        "step_timeout_ms": round(1e3 * fault.step_timeout_s / dilation, 1),
        "through_ms": [[round(at_ms, 1), step] for at_ms, step in times],
        "ended": worker.ended,
    }
