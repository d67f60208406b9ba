"""(rank, world size, counts) → role. Pure: no environment, no sockets; an error prints its arithmetic.

    71 = 4 servers + 1 evaluator + 1 recorder + 65 workers (60 gradients + 5 backup)

Ranks are dealt in that order: servers, evaluators, recorders, workers; where servers have no ranks of their own workers
come first, for rank 0 has to know how the run ends. With several tasks on a node the few that serve
many (servers, learners) are spread over the nodes, one each, because a node's link is what they run out of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from dba3c.errors import UserError

NAMES = ("server", "learner", "evaluator", "recorder", "worker", "actor")
"""Roles in the order in which ranks are dealt."""

SPREAD = ("server", "learner")
"""Roles of which two on one node would share its link."""


@dataclass(frozen=True)
class Assignment:
    """One process: its role, and its number within the role."""

    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How many of each role. Valid by construction.

    Raises:
        UserError: counts that no run can have; the message is the arithmetic.
    """

    servers: int = 0
    workers: int = 0
    backup_workers: int = 0
    evaluators: int = 0
    recorders: int = 0
    learners: int = 0
    actors: int = 0
    colocated_servers: bool = False
    """Servers run beside workers, in the same ranks, instead of in ranks of their own."""
    colocated_actors: bool = False
    """Each learner's actors run beside it."""
    asynchronous: bool = False
    """Each gradient is an update."""

    def __post_init__(self) -> None:
        for name in ("servers", "workers", "backup_workers", "evaluators", "recorders", "learners", "actors"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.learners or self.actors:
            if self.workers or self.backup_workers:
                raise UserError("central inference has learners and actors, no workers")
            if not self.learners or not self.actors:
                raise UserError(
                    f"central inference needs a learner and an actor, got {_count(self.learners, 'learner')} + "
                    f"{_count(self.actors, 'actor')}"
                )
            if self.actors < self.learners:
                raise UserError(
                    f"{_count(self.learners, 'learner')} + {_count(self.actors, 'actor')}: each learner needs an actor"
                )
        elif self.workers < 1:
            raise UserError(f"no rank is left for a worker: {self._sum_text()} = {self.ranks}")
        elif self.gradients < 1:
            raise UserError(f"{self.backup_workers} backup of {self.workers} workers leave no gradient for an update")
        if self.colocated_servers and self.servers > self.workers:
            raise UserError(f"{self.servers} servers beside {self.workers} workers: at most one beside each worker")

    @property
    def gradients(self) -> int:
        """g: gradients from distinct workers that make one update."""
        return self.workers - self.backup_workers

    def count(self, role: str) -> int:
        """How many processes have this role."""
        return int(getattr(self, role + "s"))

    @property
    def ranks(self) -> int:
        """How many ranks a launcher has to start."""
        return sum(self.count(role) for role in self._dealt())

    def _dealt(self) -> list[str]:
        """Roles that have ranks of their own."""
        beside = {"server": self.colocated_servers, "actor": self.colocated_actors}
        own = [role for role in NAMES if self.count(role) and not beside.get(role, False)]
        return own if set(own) & set(SPREAD) else sorted(own, key=("worker", "evaluator", "recorder").index)

    def _sum_text(self) -> str:
        return " + ".join(_count(self.count(role), role) for role in self._dealt()) or "nothing"

    def arithmetic(self) -> str:
        """One line for people: the sum at the top of this file."""
        text = f"{self.ranks} = {self._sum_text()}"
        if self.workers:
            synchronous = f"{_count(self.gradients, 'gradient')} + {self.backup_workers} backup"
            text += f" ({'each gradient is an update' if self.asynchronous else synchronous})"
        if self.colocated_servers and self.servers:
            text += f", {_count(self.servers, 'server')} beside workers"
        if self.colocated_actors:
            text += f", {_count(self.actors, 'actor')} beside learners"
        return text

    def place(self, tasks_per_node: Sequence[int]) -> list[tuple[Assignment, ...]]:
        """What each rank runs, in rank order; the first entry is the rank's own role.

        Args:
            tasks_per_node: ranks on each node when ranks fill one node after the other.

        Raises:
            UserError: the nodes' tasks are not as many as the ranks.
        """
        if (tasks := sum(tasks_per_node)) != self.ranks:
            added = " + ".join(map(str, tasks_per_node))
            raise UserError(f"{added} = {tasks} tasks on {len(tasks_per_node)} nodes, but {self.arithmetic()}")
        order = _round_robin(tasks_per_node)
        assignments = [Assignment(role, i) for role in self._dealt() for i in range(self.count(role))]
        spread = [assignment for assignment in assignments if assignment.role in SPREAD]
        rest = iter([assignment for assignment in assignments if assignment.role not in SPREAD])
        dealt = dict(zip(order, spread, strict=False))
        ranks = [dealt[rank] if rank in dealt else next(rest) for rank in range(self.ranks)]
        beside: dict[int, list[Assignment]] = {}
        if self.colocated_actors:
            beside = {
                rank: [Assignment("actor", i) for i in range(own.rank, self.actors, self.learners)]
                for rank, own in enumerate(ranks)
                if own.role == "learner"
            }
        elif self.colocated_servers:
            hosts = [rank for rank in order if ranks[rank].role == "worker"][: self.servers]
            beside = {rank: [Assignment("server", i)] for i, rank in enumerate(hosts)}
        return [(own, *beside.get(rank, ())) for rank, own in enumerate(ranks)]


def fit(
    world_size: int,
    *,
    servers: int = 0,
    workers: int | None = None,
    gradients: int | None = None,
    backup_workers: int | None = None,
    evaluators: int = 0,
    recorders: int = 0,
    learners: int = 0,
    actors: int | None = None,
    colocated_servers: bool = False,
    asynchronous: bool = False,
    started_by: str = "the launcher",
) -> Topology:
    """The topology of ``world_size`` ranks: what was not given follows from what was.

    Args:
        workers, gradients, backup_workers, actors: None where the command line says nothing.
        learners: with these it is central inference, and what is left are actors.
        started_by: what started the ranks, for the message.

    Raises:
        UserError: the counts contradict each other or the number of ranks; the message is the arithmetic.
    """
    parts = {"server": 0 if colocated_servers else servers, "learner": learners}
    parts |= {"evaluator": evaluators, "recorder": recorders}
    others = sum(parts.values())
    left = world_size - others
    asked_sum = " + ".join(_count(number, role) for role, number in parts.items() if number)

    def contradicted(asks: str) -> UserError:
        return UserError(f"{started_by} started {_count(world_size, 'rank')}, but {asks}")

    if learners:
        if backup_workers:
            raise UserError(
                f"{_count(world_size, 'rank')} = {asked_sum} + {_count(left, 'actor')} leave no worker, "
                f"but the options ask for {_count(backup_workers, 'backup worker')}"
            )
        if actors is not None and actors != left:
            raise contradicted(f"the options ask for {asked_sum} + {_count(actors, 'actor')} = {others + actors}")
        if left < 0:
            raise contradicted(f"{asked_sum} leave none for an actor")
        return Topology(servers=servers, learners=learners, actors=left, evaluators=evaluators, recorders=recorders)
    if workers is None:
        if left < 1:
            leaves = "leaves" if others == 1 else "leave"
            raise contradicted(f"{asked_sum} {leaves} none for a worker")
        workers = left
    elif workers != left:
        asked = f"{asked_sum} + " if asked_sum else ""
        raise contradicted(f"the options ask for {asked}{_count(workers, 'worker')} = {others + workers}")
    if gradients is None:
        backup_workers = backup_workers or 0
    elif backup_workers is None:
        backup_workers = workers - gradients
        if backup_workers < 0:
            raise UserError(f"{gradients} gradients need as many workers, but {world_size} ranks leave {workers}")
    elif gradients + backup_workers != workers:
        raise UserError(
            f"{gradients} gradients + {backup_workers} backup = {gradients + backup_workers} workers, "
            f"but {world_size} ranks leave {workers}"
        )
    return Topology(
        servers=servers,
        workers=workers,
        backup_workers=backup_workers,
        evaluators=evaluators,
        recorders=recorders,
        colocated_servers=colocated_servers,
        asynchronous=asynchronous,
    )


def _round_robin(tasks_per_node: Sequence[int]) -> list[int]:
    """Ranks, the first of every node before the second of any: ``[2, 1]`` → ``[0, 2, 1]``."""
    nodes = [range(end - tasks, end) for tasks, end in zip(tasks_per_node, accumulate(tasks_per_node), strict=True)]
    return [rank for turn in zip_longest(*nodes) for rank in turn if rank is not None]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
