"""What is measured, in the order of its worth: a row is data, and is measured by measure.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from central_lab import CentralScene
from headline import ENVIRONMENTS as SHARED_ENVIRONMENTS
from headline import LENGTH_STEPS
from lab import CORES, Scene, node_times_s
from numpy.typing import NDArray
from other_systems import PEERS
from over_launchers import LAUNCHED

from dba3c.simulation.simulate import AgentCosts
from dba3c.studies.page import rows_of
from param_servers.benchmarks.exchange import WARM_UP_STEPS
from param_servers.benchmarks.hosts import Fault, FaultKind
from param_servers.errors import ConfigError

HERE = Path(__file__).resolve().parent
TIMES, SHARED_TIMES = HERE / "compute_times.csv", HERE / "shared_times.csv"
"""Recorded; the second for the part `to_score`."""
PARAMETERS = {"dba3c": 332_037, "small": 677_429, "nature": 1_686_693}
REDUCTION_MS = {"dba3c": 0.27, "small": 0.57, "nature": 2.0}
"""Of a node's lanes: `param_servers.benchmarks.lanes --lanes 2`, each lane on a core of its own (README)."""
ENVIRONMENTS = 4
"""Of a lane, where nodes do not share the learning run's."""
NODES = (64, 1, 4, 16, 2, 8, 32)
MANY_NODES = tuple(n for n in NODES if n > 1)
SEED = 0
DRAWN_STEPS = 200
CALIBRATION_MBIT = 50.0
"""As slow as rows are: at 250 Mbit/s four processes took 90 % of this machine, and it was measured, not the wire."""
CALIBRATION = {
    "servers": (
        (1, 1, 0, 0.004), (4, 4, 0, 0.004), (1, 1, 0, 2.7), (2, 1, 0, 1.33), (4, 1, 0, 1.33), (4, 4, 0, 1.33),
        (4, 2, 1, 1.33), (4, 1, 2, 1.33), (3, 1, 1, 1.33),
    ),
    "allreduce": ((2, 0, 0, 0.004), (4, 0, 0, 0.004), (2, 0, 0, 1.33), (4, 0, 0, 1.33), (3, 0, 0, 2.7)),
    "majority": ((4, 0, 1, 0.004), (2, 0, 0, 1.33), (4, 0, 1, 1.33), (3, 0, 1, 1.33)),
}  # fmt: skip
"""(n, k, b, megabytes), without compute; each family of exchanges is fitted by itself."""
MOST_OTHERS = 0.2
"""Of the processors, by other work while a row is measured."""
MOST_EXPECTED = 0.8
"""Of the processors, where D is given: what is expected is the dearest that was seen, and what is measured decides."""
STRAGGLER = 3.0
UNDILATED_HOSTS = 8
"""Sixteen cores hold them at D = 1."""
TAIL = 0.5
STEPS_BEFORE, STEPS_AFTER = 6, 10
"""A fault."""
STEP_TIMEOUT_S = 40.0
"""Of this machine, in rows with a fault: 64 ranks on two cores take 30 s to build a group, at any D."""
REPLACED_S = 1.0
"""Of the cluster: from the death of a server's host to its successor's start."""
CHECKPOINT_EVERY_STEPS = 6


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
    fault: FaultKind | None = None
    environments: int = ENVIRONMENTS
    """Of a lane; a gradient is of `LENGTH_STEPS` of each."""

    @property
    def key(self) -> str:
        words = [self.part, self.network, *self.scene, self.tail, self.dilation, self.slow]
        environments = [self.environments] if self.part == "to_score" else []
        return json.dumps([*words, *([self.fault] if self.fault else []), *environments])

    @property
    def points(self) -> int:
        """Data points of a gradient."""
        return CORES * self.environments * LENGTH_STEPS

    def times_s(self) -> NDArray[np.float64]:
        """[steps, n]: the same for all rows of a network, whatever exchange, D and, but in `to_score`, n."""
        if not self.network:
            return np.zeros((1, self.scene.workers))
        reduction_s = REDUCTION_MS[self.network] / 1e3
        lane_s = recorded_s(SHARED_TIMES if self.part == "to_score" else TIMES, self.network, self.environments)
        times_s = node_times_s(lane_s, reduction_s, DRAWN_STEPS, self.scene.workers, SEED, self.tail)
        times_s[:, 1:2] *= self.slow
        return times_s

    def compute_ms(self) -> float | None:
        """As its line says it."""
        return round(1e3 * float(self.times_s().mean()), 3)

    def fault_at(self, dilation: float) -> Fault | None:
        if self.fault is None:
            return None
        at_step = WARM_UP_STEPS + STEPS_BEFORE
        return Fault(self.fault, at_step, STEP_TIMEOUT_S, REPLACED_S * dilation, CHECKPOINT_EVERY_STEPS)


class CentralRow(NamedTuple):
    """As much experience in an update as all workers' gradients of a step have."""

    network: str
    """Whose costs."""
    scene: CentralScene

    part = "central"

    @property
    def key(self) -> str:
        return json.dumps([self.part, self.network, *self.scene])

    def compute_ms(self) -> float | None:
        return None

    def costs(self) -> AgentCosts:
        """Seconds of one core for a step, as recorded. Raises ConfigError: they were not."""
        found = json.loads((HERE.parent / "simulation" / "agent_costs.json").read_text(encoding="utf-8"))
        if self.network not in found:
            raise ConfigError(f"results/simulation/agent_costs.json has no costs of the network {self.network}")
        return AgentCosts(**found[self.network]["costs"])


def is_calibration(row: dict[str, Any]) -> bool:
    """Without compute the wire alone is asked, and processors are busy."""
    return not row["network"]


def dilation_told(row: dict[str, Any]) -> str:
    """D, with the mark that the page explains."""
    return f"{row['dilation']}{mark(row)}"


def mark(row: dict[str, Any]) -> str:
    return " †" if row["refused"] else ""


def megabytes(network: str) -> float:
    return 4 * PARAMETERS[network] / 1e6


def recorded_s(file: Path, network: str, environments: int) -> NDArray[np.float64]:
    """Of a lane's rollouts, each with its gradient."""
    asked, rows = (network, str(environments)), rows_of(file)
    return np.array([float(row["ms"]) / 1e3 for row in rows if (row["network"], row["environments"]) == asked])


def scene(exchange: str, n: int, network: str, gbit: float, k: int = 0, b: int = 0, colocated: bool = False) -> Scene:
    return Scene(exchange, n, b, k, colocated, megabytes(network), gbit)


# -- the parts ---------------------------------------------------------------------------------------------------------


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
    yield Row("method", "small", scene("servers", 16, "small", 1, k=4), dilation=1)  # needs more than two cores
    yield Row("method", "small", scene("allreduce", 16, "small", 1), dilation=2)


def undilated() -> Iterator[Row]:
    """Eight hosts beside what a user would pick instead, once more on a machine that holds them at D = 1."""
    for network, mb in (("small", 1.33), ("nature", 6.7)):
        for row in peers(UNDILATED_HOSTS, network, mb):
            yield row._replace(part="undilated", dilation=1)


def workers(gbit: float, network: str, nodes: tuple[int, ...] = NODES) -> Iterator[Row]:
    """Figure 1, DBA3C's first axis: more nodes."""
    for n in nodes:
        yield Row("workers", network, scene("servers", n, network, gbit, k=4))
        yield Row("workers", network, scene("servers", n, network, gbit, k=n, colocated=True))
        if n > 1:
            yield Row("workers", network, scene("allreduce", n, network, gbit))
        if n > 4:
            yield Row("workers", network, scene("majority", n, network, gbit, b=max(1, n // 16)))


def asynchronous(gbit: float, network: str) -> Iterator[Row]:
    for n in MANY_NODES:
        yield Row("workers", network, scene("async", n, network, gbit, k=4))


def over_launchers(gbit: float, network: str) -> Iterator[Row]:
    """Our all-reduce over MPI and Horovod."""
    for n in MANY_NODES:
        for exchange in LAUNCHED:
            yield Row("workers", network, scene(exchange, n, network, gbit))


def servers(gbit: float, network: str, n: int = 64) -> Iterator[Row]:
    """Figure 2, DBA3C's second plot: more servers for 64 workers; and with fewer workers, for figure 1."""
    for k in (1, 2, 4, 8):
        yield Row("workers", network, scene("servers", n, network, gbit, k=k))
    yield Row("workers", network, scene("servers", n, network, gbit, k=n, colocated=True))


def backup(exchange: str, k: int, network: str) -> Iterator[Row]:
    """Figure 4: of 64 workers with stragglers."""
    for b in (0, 4, 8, 2, 16, 12):
        yield Row("backup", network, scene(exchange, 64, network, 1.0, k=k, b=b), tail=TAIL)


def peers(n: int, network: str, mb: float) -> Iterator[Row]:
    """Ours and what a user would pick instead; without a straggler, where ours have their all-reduce too (over Gloo and
    MPI), and with one, where they have one backup worker."""
    for slow in (1.0, STRAGGLER):
        b = int(slow > 1)
        ours = [("servers", n, b, True), ("majority", 0, b, False), ("servers", 4, b, False)]
        ours += [] if b else [(name, 0, 0, False) for name in ("allreduce", *LAUNCHED) if "Horovod" not in name]
        theirs = [(name, int(other.serve is not None), 0, False) for name, other in PEERS.items()]
        for exchange, k, backups, colocated in theirs + ours:
            yield Row("peers", network, Scene(exchange, n, backups, k, colocated, mb, 1.0), slow=slow)


def faults(network: str) -> Iterator[Row]:
    """Figure 5: 64 workers through an event."""
    with_servers = scene("servers", 64, network, 1.0, k=4, b=4)
    yield Row("faults", network, with_servers, fault="dead server")
    kinds: tuple[FaultKind, ...] = ("unplugged host", "slow host")
    for kind in kinds:
        yield Row("faults", network, with_servers, fault=kind)
        yield Row("faults", network, scene("majority", 64, network, 1.0, b=4), fault=kind)
        yield Row("faults", network, scene("allreduce", 64, network, 1.0), fault=kind)


def to_score(network: str) -> Iterator[Row]:
    """Figure 3, DBA3C's first plot: updates of 3,600 samples, and smaller ones on fewer nodes, which were shown to
    learn (results/batch_size)."""
    for gbit, exchange, n, k in (
        (10.0, "allreduce", 60, 0), (10.0, "servers", 60, 4), (1.0, "allreduce", 60, 0), (1.0, "servers", 60, 4),
        (10.0, "allreduce", 15, 0), (10.0, "allreduce", 3, 0), (10.0, "servers", 15, 4), (10.0, "servers", 3, 4),
        (10.0, "servers", 60, 12), (10.0, "servers", 60, 20),
        (1.0, "servers", 60, 60), (10.0, "servers", 15, 15), (10.0, "servers", 3, 3), (1.0, "allreduce", 15, 0),
        (1.0, "servers", 15, 15), (1.0, "allreduce", 3, 0), (1.0, "servers", 3, 3),
    ):  # fmt: skip
        where = scene(exchange, n, network, gbit, k=k, colocated=k not in (0, 4, 12))
        yield Row("to_score", network, where, environments=SHARED_ENVIRONMENTS // (n * CORES))
    script = scene("servers", 64, network, 10.0, k=20, b=4, colocated=True)  # slurm/breakout_64nodes.sh
    yield Row("to_score", network, script, environments=1)
    for n, environments in ((8, 1), (2, 4), (20, 1), (5, 4), (32, 1), (8, 4)):  # 480, 1,200 and 1,920 samples
        yield Row("to_score", network, scene("allreduce", n, network, 10.0), environments=environments)
        beside = scene("servers", n, network, 10.0, k=min(n, 20), colocated=True)
        yield Row("to_score", network, beside, environments=environments)


def central(gbit: float, network: str) -> Iterator[CentralRow]:
    """64 nodes of actors, and a learner worth so many cores."""
    for cores in (12.0, 100.0, *((1.0,) if gbit == 1.0 else ())):  # one core is slower than either wire
        yield CentralRow(network, CentralScene(64, CORES * ENVIRONMENTS, cores, gbit, LENGTH_STEPS))


def everything() -> Iterator[Row | CentralRow]:
    """Each row once, in the order in which they are measured."""
    seen = set()
    for row in _in_order_of_worth():
        if row.key not in seen:
            seen.add(row.key)
            yield row


def _in_order_of_worth() -> Iterator[Row | CentralRow]:
    yield from calibration()
    yield from method()
    yield from workers(1.0, "small", (64, 1, 4, 16))
    yield from peers(16, "small", 1.33)
    yield from servers(1.0, "small")
    yield from to_score("small")
    yield from backup("servers", 4, "dba3c")
    yield from backup("majority", 0, "small")
    yield from peers(8, "small", 1.33)
    yield from peers(64, "small", 1.33)
    yield from asynchronous(1.0, "small")
    yield from workers(1.0, "dba3c", (64, 1, 4, 16))
    yield from workers(1.0, "nature", (64, 1, 4, 16))
    yield from servers(1.0, "dba3c")
    yield from faults("small")
    yield from central(1.0, "small")
    yield from central(10.0, "small")
    for network in ("nature", "dba3c"):
        yield from central(1.0, network)
        yield from central(10.0, network)
    for n in (16, 64, 8):
        yield from peers(n, "nature", 6.7)
    for network in PARAMETERS:
        yield from workers(1.0, network)
        yield from workers(10.0, network)
        yield from servers(10.0, network)
        yield from asynchronous(10.0, network)
    for network in PARAMETERS:
        yield from servers(1.0, network)
        yield from asynchronous(1.0, network)
        for n in MANY_NODES:
            yield from servers(1.0, network, n)
            yield from servers(10.0, network, n)
    for network in ("small", "nature", "dba3c"):
        for gbit in (1.0, 10.0):
            yield from over_launchers(gbit, network)
    yield from undilated()
