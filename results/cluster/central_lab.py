"""Central inference on a cluster that one machine stands for, by time dilation: n nodes of actors and one learner.

As in `lab` hosts are network namespaces, and computing and the network are slowed by the same factor D. Links,
messages, batches, unrolls and memory are the real ones; environments, policy and gradient are sleeps of the time that
one core was recorded to take, for an actor's node divided among its 12 cores, for the learner's by as many as it is
worth.
"""

import os
import time
from dataclasses import replace
from typing import Any, NamedTuple

from lab import CORES, MOST_BUSY, QUEUE_BYTES

from dba3c.benchmarks.inference import GROUPS, BlankEnvironment, ZeroPolicy, shape_of
from dba3c.central.actor import Actor, ActorGroup
from dba3c.central.service import Batcher, InferenceService
from dba3c.central.unrolls import UnrollStore
from dba3c.metrics.writer import Sections
from dba3c.simulation.cluster import Cluster
from dba3c.simulation.simulate import AgentCosts, CentralSetup, central_steps_per_s
from param_servers.benchmarks.hosts import FORK, Load, Namespaces, Processes, Snapshot
from param_servers.errors import ConfigError

WARM_UP_UPDATES = 2
INFERENCE_TIMEOUT_S = 0.01
"""Of the cluster; a batch is half of all environments."""
CPU_S_PER_GB = 12.0
"""Both ends, the switch, and the learner's stacks of frames: seen here."""
DILATIONS = (1, 2, 5, 10, 20, 40)
PATIENCE_S = 300.0
_NAP_S = 1.0
_SIMULATED_UPDATES = 40
_FRAME_BYTES = 84 * 84


class CentralScene(NamedTuple):
    """In the cluster's own time."""

    actors: int
    """n, nodes of `CORES` cores."""
    envs_per_actor: int
    learner_cores: float
    """What the learner's node is worth."""
    gbit: float
    length_steps: int
    """T, of an unroll. An update is one unroll of each group."""

    @property
    def points_per_update(self) -> int:
        return self.actors * self.envs_per_actor * self.length_steps

    @property
    def bound_s(self) -> float:
        """Least time of an update's observations on the learner's link: one new frame for each step."""
        return self.points_per_update * _FRAME_BYTES * 8 / (1e9 * self.gbit)


def predicted_points_per_s(scene: CentralScene, costs: AgentCosts) -> float:
    """By the simulator, whose actors here are whole nodes, and whose network has no latency."""
    node = replace(costs, environment_s=costs.environment_s / CORES)
    setup = CentralSetup(
        actors=scene.actors,
        envs_per_actor=scene.envs_per_actor,
        learner_speed=scene.learner_cores,
        batch_points=scene.points_per_update,
    )
    cluster = Cluster(bytes_per_s=1e9 * scene.gbit / 8)
    return central_steps_per_s(cluster, node, setup, rounds=_SIMULATED_UPDATES * scene.length_steps)


def choose_dilation(scene: CentralScene, cores: int) -> int:
    """The smallest that leaves the machine idle enough while observations are on the wire. Raises ConfigError."""
    cpu_s = scene.points_per_update * _FRAME_BYTES / 1e9 * CPU_S_PER_GB
    for dilation in DILATIONS:
        if cpu_s / (cores * dilation * scene.bound_s) <= MOST_BUSY and scene.gbit * 1e3 / dilation <= 1000:
            return dilation
    raise ConfigError(f"an update takes {cpu_s:.2f} s of processor, too much for {cores} cores at D = {DILATIONS[-1]}")


def measure(scene: CentralScene, costs: AgentCosts, dilation: float, updates: int) -> dict[str, Any]:
    """One row, in the cluster's time. Needs root. Raises PeerLost when the processes fail or do not end in time."""
    began_s, rate_mbit = time.monotonic(), 1e3 * scene.gbit / dilation
    with Namespaces(1 + scene.actors, rate_mbit, QUEUE_BYTES) as hosts:
        bench = _Bench(scene, costs, dilation, updates, hosts)
        with bench.processes as processes:
            updated_s, load = processes.result()
    step_s = (updated_s[-1] - updated_s[0]) / (len(updated_s) - 1) / dilation
    return {
        **scene._asdict(),
        "dilation": dilation,
        "rate_mbit": rate_mbit,
        "queue_bytes": QUEUE_BYTES,
        "updates": updates,
        "bound_ms": round(1e3 * scene.bound_s, 3),
        "step_ms": round(1e3 * step_s, 3),
        "data_points_per_s": round(scene.points_per_update / step_s, 1),
        "busy_share": round(load.busy_share, 3),
        "others_share": round(load.others_share, 3),
        "own_share": round(load.own_share, 3),
        "learner_process_cores": round(load.cpu_s[0] * dilation / load.elapsed_s, 2),
        "refused": load.own_share > MOST_BUSY,
        "congestion_control": hosts.congestion_control,
        "row_s": round(time.monotonic() - began_s, 1),
    }


class _Bench:
    """What forked processes share: 0 is the learner, then come the actors."""

    def __init__(
        self, scene: CentralScene, costs: AgentCosts, dilation: float, updates: int, hosts: Namespaces
    ) -> None:
        self._scene, self._costs, self._dilation, self._updates, self._hosts = scene, costs, dilation, updates, hosts
        self._secret = os.urandom(32)
        self._port = FORK.Value("i", 0)
        self.processes = Processes(1 + scene.actors, self._be)
        self._shape = shape_of("blank", scene.envs_per_actor // GROUPS)

    def _be(self, number: int, incarnation: int) -> tuple[list[float], Load] | None:
        self._hosts.enter(number)
        if number == 0:
            return self._learn()
        self._act(number - 1)
        return None

    def _sleep(self, seconds: float) -> None:
        time.sleep(self._dilation * seconds)

    def _act(self, rank: int) -> None:
        size = self._shape.num_envs
        step_s = size * self._costs.environment_s / CORES
        groups = [ActorGroup(BlankEnvironment(size, lambda: self._sleep(step_s)), self._shape) for _ in range(GROUPS)]
        Actor(
            rank=rank,
            incarnation=0,
            learner=0,
            groups=groups,
            resolve=self._address,
            secret=self._secret,
            join_timeout_s=PATIENCE_S,
            answer_timeout_s=PATIENCE_S,
            reconnect_timeout_s=1.0,
        ).run()

    def _address(self) -> tuple[str, int] | None:
        return (self._hosts.address(0), self._port.value) if self._port.value else None

    def _learn(self) -> tuple[list[float], Load]:
        """When each update was done, from the end of the warm-up, and what the machine did meanwhile."""
        scene, costs, speed = self._scene, self._costs, self._scene.learner_cores
        half = scene.actors * scene.envs_per_actor // 2
        batcher = Batcher(half, self._dilation * INFERENCE_TIMEOUT_S)
        policy = ZeroPolicy(lambda size: self._sleep(size * costs.inference_s / speed))
        store = UnrollStore(self._shape, scene.length_steps)
        service = InferenceService(self._secret, 0, policy, store, batcher, GROUPS)
        _, self._port.value = service.hub.listen(self._hosts.address(0), 0)
        sections, updated_s = Sections(), list[float]()
        began: Snapshot | None = None
        while len(updated_s) < WARM_UP_UPDATES + self._updates:
            while store.ready < scene.actors * GROUPS:  # in one thread; who asks for the result waits within bounds
                service.turn(_NAP_S, sections)
            store.take(scene.actors * GROUPS)
            self._sleep(scene.points_per_update * (costs.inference_s + costs.learning_s) / speed)
            updated_s.append(time.perf_counter())
            if began is None and len(updated_s) >= WARM_UP_UPDATES:
                began = self.processes.snapshot()
        assert began is not None
        load = self.processes.snapshot() - began
        service.close("measured")
        return updated_s[WARM_UP_UPDATES - 1 :], load
