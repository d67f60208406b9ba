"""One question to the model: how long does a step take on this cluster, with this work and this exchange?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dba3c.errors import UserError
from dba3c.simulation.cluster import Cluster, Setup, Work
from dba3c.simulation.collectives import simulate_allreduce, simulate_majority
from dba3c.simulation.outcome import Outcome
from dba3c.simulation.servers import ServerSimulation


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
