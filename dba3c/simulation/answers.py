"""How many servers and backup workers for my cluster? The same nodes used in all ways, simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dba3c.errors import UserError
from dba3c.simulation.cluster import Cluster, Setup, Work
from dba3c.simulation.simulate import simulate

_AS_GOOD = 0.02
"""Differences below this share are not worth a server."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to use the nodes."""

    setup: Setup
    step_s: float
    data_points_per_s: float
    dropped_share: float

    @property
    def name(self) -> str:
        """For people: 4 servers, colocated; all-reduce."""
        setup = self.setup
        if setup.exchange == "allreduce":
            return "all-reduce" if not setup.backup else "majority"
        if setup.exchange == "majority":
            return "majority"
        return f"{setup.servers} server{'s' if setup.servers > 1 else ''}{' beside workers' if setup.colocated else ''}"


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
) -> list[Option]:
    """Every way to use the nodes, simulated.

    Raises:
        UserError: none of them leaves a worker.
    """
    found = []
    for setup in setups(nodes, servers, backups):
        outcome = simulate(cluster, work, setup, steps, seed)
        found.append(
            Option(
                setup=setup,
                step_s=outcome.step_s,
                data_points_per_s=outcome.data_points_per_s,
                dropped_share=outcome.dropped_share,
            )
        )
    if not found:
        raise UserError(f"{nodes} nodes leave no worker beside {min(servers, default=0)} servers")
    return found


def best(found: Sequence[Option]) -> Option:
    """The most data points per second; among those within 2 % of it the fewest servers, then the fewest backups."""
    most = max(option.data_points_per_s for option in found)
    good = [option for option in found if option.data_points_per_s >= (1 - _AS_GOOD) * most]
    return min(good, key=lambda option: (option.setup.servers, option.setup.backup, -option.data_points_per_s))
