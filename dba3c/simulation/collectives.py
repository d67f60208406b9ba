"""Steps of the exchanges without servers: ring all-reduce, and the majority that waits for its first g ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dba3c.simulation.cluster import Cluster, Setup, Work
from dba3c.simulation.outcome import Outcome


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
