"""How long does a step take on this cluster, and how are its nodes used best: servers, backup workers, or one learner?

In central inference actors step environments, and a learner answers them in batches and learns. Each actor has two
groups of environments: while one waits for its actions the other is stepped. The learner does one thing at a time: it
answers all that wait (a batch), and learns when enough data points have come in.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError
from dba3c.simulation.cluster import Cluster, ComputeTimes, Outcome, Setup, Work
from dba3c.simulation.servers import ServerSimulation

_AS_GOOD = 0.02
"""Differences below this share are not worth a server."""


def simulate(cluster: Cluster, work: Work, setup: Setup, steps: int = 50, seed: int = 0) -> Outcome:
    """Simulates `steps` committed steps (async: that many gradients of each worker).

    The same seed gives the same times to compute, whatever the cluster.

    Raises:
        UserError: fewer than one step.
    """
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
    return simulate_times(cluster, work, setup, work.compute.draw(steps, setup.workers, seed), steps)


def simulate_times(
    cluster: Cluster, work: Work, setup: Setup, times_s: NDArray[np.float64], steps: int | None = None
) -> Outcome:
    """As `simulate`, with given times to compute [rows, n]: of worker w on version v, row v modulo rows.

    `steps`: None: as many as rows; only servers can go beyond them.
    """
    steps = len(times_s) if steps is None else steps
    if setup.exchange == "allreduce":
        return simulate_allreduce(cluster, work, setup, times_s)
    if setup.exchange == "majority":
        return simulate_majority(cluster, work, setup, times_s)
    commits = steps * setup.workers if setup.exchange == "async" else steps
    return ServerSimulation(cluster, work, setup, times_s).run(commits)


# -- exchanges without servers -----------------------------------------------------------------------------------------


def ring_s(cluster: Cluster, work: Work, ranks: int) -> float:
    """2(n−1) rounds, each a message of M/n to the neighbour; then every rank steps its optimizer."""
    rounds = 2 * (ranks - 1)
    round_s = cluster.latency_s + work.model_bytes / ranks / cluster.tensor_bytes_per_s
    return rounds * round_s + work.model_bytes / cluster.apply_bytes_per_s


def simulate_allreduce(cluster: Cluster, work: Work, setup: Setup, times_s: NDArray[np.float64]) -> Outcome:
    """Every step waits for its slowest rank. `times_s` [steps, n]."""
    steps_s = times_s.max(axis=1) + ring_s(cluster, work, setup.workers)
    return Outcome(np.cumsum(steps_s), setup.gradients, 0, work.data_points)


def simulate_majority(cluster: Cluster, work: Work, setup: Setup, times_s: NDArray[np.float64]) -> Outcome:
    """A step begins to sum when its g-th rank has said so to the chief, late ranks adding zeros (`majority`).

    A late rank takes part in the sum while it computes; it drops its gradient when that is done and goes on from the
    newest parameters, which it has by then. `times_s` [steps, n].
    """
    begins_s = np.zeros(setup.workers)
    """When each rank is free to compute."""
    now_s, dropped, commits_s = 0.0, 0, []
    sum_s = ring_s(cluster, work, setup.workers)
    for row in times_s:
        ready_s = np.maximum(begins_s, now_s) + row
        members = np.argsort(ready_s, kind="stable")[: setup.gradients]
        heard_s = 0.0
        for one_s in ready_s[members]:
            heard_s = max(heard_s, one_s + cluster.latency_s) + cluster.message_s
        done_s = heard_s + cluster.latency_s + sum_s
        late = np.ones(setup.workers, dtype=bool)
        late[members] = False
        late &= np.maximum(begins_s, now_s) < done_s - sum_s  # who comes while it is summed waits for the next version
        dropped += int(late.sum())
        begins_s = np.where(late, ready_s, begins_s)
        begins_s[members] = done_s
        now_s = done_s
        commits_s.append(done_s)
    return Outcome(np.array(commits_s), setup.gradients, dropped, work.data_points)


# -- all ways to use the same nodes ------------------------------------------------------------------------------------


def options(
    cluster: Cluster,
    work: Work,
    nodes: int,
    servers: Sequence[int],
    backups: Sequence[int],
    steps: int = 50,
    seed: int = 0,
) -> dict[Setup, Outcome]:
    """Ways to use the nodes, simulated: k dedicated servers, one beside every worker, all-reduce; each with b backups.

    Raises:
        UserError: none of them leaves a worker.
    """
    setups: list[Setup] = []
    for b in backups:
        setups += [Setup(workers=nodes - k, servers=k, backup=b) for k in servers if nodes - k > b]
        if nodes > b:
            setups.append(Setup(workers=nodes, servers=nodes, backup=b, colocated=True))
            setups.append(Setup(workers=nodes, exchange="majority" if b else "allreduce", backup=b))
    if not setups:
        least = min(backups, default=0)
        others = f"{least} backup workers" if 0 < nodes <= least else f"{min(servers, default=0)} servers"
        raise UserError(f"{nodes} nodes leave no worker beside {others}")
    return {setup: simulate(cluster, work, setup, steps, seed) for setup in setups}


def best(found: Mapping[Setup, Outcome]) -> Setup:
    """The most data points per second; among those within 2 % of it the fewest servers, then the fewest backups."""
    rates = {setup: outcome.data_points_per_s for setup, outcome in found.items()}
    good = [setup for setup, rate in rates.items() if rate >= (1 - _AS_GOOD) * max(rates.values())]
    servers = {setup: setup.servers if setup.exchange in ("servers", "async") else 0 for setup in good}
    return min(good, key=lambda setup: (servers[setup], setup.backup, -rates[setup]))


# -- central inference -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AgentCosts:
    """Seconds that one core takes for one agent step of one environment."""

    environment_s: float
    inference_s: float
    learning_s: float
    """Loss and backward pass, the forward pass being at hand."""
    observation_bytes: float = 84 * 84
    """Sent for each agent step; frame stacks are made by the learner."""


@dataclass(frozen=True, kw_only=True)
class CentralSetup:
    """Actors and one learner."""

    actors: int
    """Processes of one core that step environments."""
    envs_per_actor: int = 32
    """In two groups."""
    learner_speed: float = 1.0
    """The learner's speed in cores: 12 for a node of 12 cores that scales perfectly, hundreds for an accelerator."""
    batch_points: int = 1920
    """Data points of one update."""

    def __post_init__(self) -> None:
        counted = self.actors >= 1 and self.envs_per_actor >= 2 and self.batch_points >= 1
        if not (counted and self.learner_speed > 0):
            raise UserError(f"central inference needs actors, at least 2 environments each, a learner; got {self}")


def central_steps_per_s(cluster: Cluster, costs: AgentCosts, setup: CentralSetup, rounds: int = 30) -> float:
    """Agent steps per second that are learned from.

    From one update's end to another's: until as many have been learned from as are taken when groups of environments
    are answered `rounds` times on average, and 10 updates were made; the first fifth is warm-up.
    """
    group = setup.envs_per_actor // 2
    actor_free_s, link_free_s = [0.0] * setup.actors, 0.0

    def observed_s(answered_s: float, actor: int) -> float:
        """When the learner has the observations that follow actions which reach the actor at `answered_s`."""
        nonlocal link_free_s
        actor_free_s[actor] = max(answered_s, actor_free_s[actor]) + group * costs.environment_s
        # The learner's link takes one group after the other; close enough to the order of arrival.
        sent_s = group * costs.observation_bytes / cluster.tensor_bytes_per_s
        link_free_s = max(link_free_s, actor_free_s[actor]) + sent_s
        return link_free_s + cluster.latency_s

    arrivals = [(observed_s(0.0, actor), actor, half) for half in range(2) for actor in range(setup.actors)]
    heapq.heapify(arrivals)
    waiting: list[tuple[int, int]] = []
    total = max(rounds * 2 * setup.actors * group, 10 * setup.batch_points)
    now_s = learned = owed = 0.0
    warm: tuple[float, float] | None = None
    while learned < total:
        while arrivals and arrivals[0][0] <= now_s:
            waiting.append(heapq.heappop(arrivals)[1:])
        if owed >= setup.batch_points:
            now_s += owed * (costs.inference_s + costs.learning_s) / setup.learner_speed
            learned, owed = learned + owed, 0.0
            if warm is None and learned >= total / 5:
                warm = (now_s, learned)
        elif waiting:
            size = len(waiting) * group
            now_s += size * costs.inference_s / setup.learner_speed
            for actor, half in waiting:
                heapq.heappush(arrivals, (observed_s(now_s + cluster.latency_s, actor), actor, half))
            waiting, owed = [], owed + size
        else:
            now_s = arrivals[0][0]
    assert warm is not None
    return (learned - warm[1]) / (now_s - warm[0]) if now_s > warm[0] else math.inf


class Comparison(NamedTuple):
    """The same cores used in two ways, in agent steps (= data points) per second."""

    workers_per_s: float
    central_per_s: float

    @property
    def central_wins(self) -> bool:
        return self.central_per_s > self.workers_per_s


def compare(
    cluster: Cluster,
    costs: AgentCosts,
    model_bytes: float,
    nodes: int,
    cores: int,
    learner_speed: float,
    batch: int = 32,
) -> Comparison:
    """N nodes as synchronous workers (servers colocated on all) against N−1 nodes of actors and one learner.

    Args:
        cores: of a node.
        learner_speed: of the learner's node, in cores; `cores` for a node like the others.
        batch: data points of one worker's gradient; an update has about `nodes` times as many in both.
    """
    if nodes < 2:
        raise UserError("central inference needs at least 2 nodes: one learner and one of actors")
    if cores < 1:
        raise UserError(f"a node has at least 1 core, got {cores}")
    step_s = costs.environment_s + costs.inference_s + costs.learning_s
    compute = ComputeTimes(mean_s=batch * step_s / cores)
    work = Work(model_bytes=model_bytes, compute=compute, data_points=batch)
    workers = simulate(cluster, work, Setup(workers=nodes, servers=nodes, colocated=True), steps=5)
    setup = CentralSetup(actors=(nodes - 1) * cores, learner_speed=learner_speed, batch_points=batch * nodes)
    central = central_steps_per_s(cluster, costs, setup, rounds=10)
    return Comparison(workers.data_points_per_s, central)
