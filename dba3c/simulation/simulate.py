"""How long does a step take on this cluster, and how many servers and backup workers serve its nodes best?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError
from dba3c.simulation.cluster import Cluster, Outcome, Setup, Work
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
    """A step begins to sum when its g-th rank has said so to the chief, late ranks adding zeros (majority.py).

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


def setups(nodes: int, servers: Sequence[int], backups: Sequence[int], colocated: bool = True) -> Iterator[Setup]:
    """Ways to use `nodes` nodes: k dedicated servers, a server beside every worker, all-reduce; each with b backups."""
    for backup in backups:
        for k in servers:
            if nodes - k > backup:
                yield Setup(workers=nodes - k, servers=k, backup=backup)
        if colocated and nodes > backup:
            yield Setup(workers=nodes, servers=nodes, backup=backup, colocated=True)
            yield Setup(workers=nodes, exchange="majority" if backup else "allreduce", backup=backup)


def options(
    cluster: Cluster,
    work: Work,
    nodes: int,
    servers: Sequence[int],
    backups: Sequence[int],
    steps: int = 50,
    seed: int = 0,
) -> dict[Setup, Outcome]:
    """Every way to use the nodes, simulated.

    Raises:
        UserError: none of them leaves a worker.
    """
    found = {setup: simulate(cluster, work, setup, steps, seed) for setup in setups(nodes, servers, backups)}
    if not found:
        raise UserError(f"{nodes} nodes leave no worker beside {min(servers, default=0)} servers")
    return found


def best(found: Mapping[Setup, Outcome]) -> Setup:
    """The most data points per second; among those within 2 % of it the fewest servers, then the fewest backups."""
    rates = {setup: outcome.data_points_per_s for setup, outcome in found.items()}
    good = [setup for setup, rate in rates.items() if rate >= (1 - _AS_GOOD) * max(rates.values())]
    return min(good, key=lambda setup: (setup.servers, setup.backup, -rates[setup]))
