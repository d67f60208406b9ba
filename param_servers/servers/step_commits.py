"""What can be decided about a run; and of that: who is here to give gradients, which gradients make a step, and who is
sent what follows. Pure.

Synchronous step v ends when g distinct workers' gradients of version v are complete on every shard: the first g such
are its members. In asynchronous mode g is 1, and gradients of older versions count, up to `max_staleness`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from param_servers.wire.messages import MEMBER, RECIPIENT, Code, Row

GIVEN_AHEAD = 2
"""Versions that may be on their way to a worker that has not asked."""
_MOST_DOUBLINGS = 20
Key = tuple[int, int]
"""(worker, incarnation)"""


class Commit(NamedTuple):
    """Every shard averages exactly the MEMBER rows of version `step` and sends the result to the RECIPIENT rows."""

    term: int
    step: int
    data_points_before: int
    """Not told to the other shards, which know it."""
    data_points: int
    """In the run, this step included."""
    rows: tuple[Row, ...]
    staleness: tuple[int, ...]
    """Of each member, in commit order; all 0 in synchronous mode."""

    @property
    def members(self) -> list[Row]:
        """The pushes that are averaged, in ascending worker order."""
        return [row for row in self.rows if row.mark & MEMBER]


class Give(NamedTuple):
    """Every shard sends version `step` to these rows; `mark` (a Code) answers push `sequence` where that is not 0."""

    term: int
    step: int
    rows: tuple[Row, ...]


class Expel(NamedTuple):
    """Every shard closes this worker's link."""

    worker: int
    incarnation: int
    reason: str


class Forsake(NamedTuple):
    """Shard 0 closes its link to a server that does not answer."""

    shard: int
    reason: str


class Restore(NamedTuple):
    """Every shard loads version `step` (0 without a checkpoint: the initial parameters) and begins `term`."""

    term: int
    step: int
    data_points: int


class WriteCheckpoint(NamedTuple):
    """Every shard writes its slice of version `step`."""

    step: int
    data_points: int


class Stop(NamedTuple):
    """The run ends now; everybody is told."""

    reason: str
    failed: bool


class Note(NamedTuple):
    """Something worth one line in the log."""

    event: str
    message: str


Order = Commit | Give | Expel | Restore | WriteCheckpoint | Stop
"""What every shard obeys, in the order in which it was decided."""
Decision = Commit | Give | Expel | Forsake | Restore | WriteCheckpoint | Stop | Note


@dataclass
class ConnectedWorker:
    """A connected worker."""

    incarnation: int
    given: list[int] = field(default_factory=list)
    """Versions sent that the worker has not been seen to use yet."""
    waiting: bool = False
    """It asked for parameters while there were none to give."""
    pulls_to_count: int = 1
    """How often it has yet to ask for parameters, as only who is linked to every shard does, before a step waits for
    it: see `StepCommits.joined`."""

    def uses(self, step: int) -> None:
        self.given = [version for version in self.given if version > step]


@dataclass
class ReportedPush:
    """A gradient, as far as shards have reported it."""

    sequence: int
    step: int
    """The version it was computed on: in synchronous mode the open step."""
    data_points: int = 0
    shards: set[int] = field(default_factory=set)


class StepCommits:
    """The workers of a run and its open step. It knows no servers, no time and no end: see `coordinator`.

    A push is complete when every shard holds its slice; the order in which pushes complete is the order in which they
    become members. A complete push is never let go of, whatever else arrives, until its step is committed or given up.

    Args:
        num_shards: reports that make a push complete.
        num_gradients: g, as configured.
        saved: (step, data_points) to begin at.
        term: the newest term known.
        asynchronous, max_staleness: whether gradients of older versions count, and of how old ones; None: of all.
    """

    def __init__(
        self,
        num_shards: int,
        num_gradients: int,
        saved: tuple[int, int],
        term: int,
        *,
        asynchronous: bool = False,
        max_staleness: int | None = None,
    ) -> None:
        self.term = term
        self.step, self.data_points = saved
        self.num_gradients = self._most_gradients = num_gradients
        """g now: fewer than configured after a shrink."""
        self.newest: dict[int, int] = {}
        """Newest incarnation of each worker that ever joined."""
        self._workers: dict[int, ConnectedWorker] = {}
        """Who is connected."""
        self._times_late: dict[int, int] = {}
        """How often a worker was expelled since it was last a member of a step."""
        self.pushes: dict[Key, ReportedPush] = {}
        """Gradients of the open step, as far as the shards have reported them."""
        self._complete: list[Key] = []
        """Those of them that every shard holds, in the order of completion."""
        self._num_shards, self._asynchronous, self._max_staleness = num_shards, asynchronous, max_staleness

    def begin_term(self, term: int, step: int, data_points: int) -> None:
        """All versions and gradients of earlier terms are void; go on from `step`. Every worker must hear of the new
        term even if it does not ask."""
        self.term, self.step, self.data_points = term, step, data_points
        self.pushes.clear()
        self._complete.clear()
        for connected in self._workers.values():
            connected.given, connected.waiting = [], True

    # -- who is here ---------------------------------------------------------------------------------------------

    def joined(self, worker: int, incarnation: int) -> list[Decision]:
        """A worker is connected, in place of any earlier incarnation of it; nothing is on its way to it.

        Steps wait for it again when it pulls; if it was expelled n times in a row for being late, when it has pulled
        2^(n - 1) times: one that is always too late costs less and less.
        """
        before = self.newest.get(worker, incarnation)
        pulls = 1 << min(max(self._times_late.get(worker, 0) - 1, 0), _MOST_DOUBLINGS)
        self._workers[worker], self.newest[worker] = ConnectedWorker(incarnation, pulls_to_count=pulls), incarnation
        decisions: list[Decision] = []
        if before < incarnation:
            self._forget(worker)
            decisions.append(Expel(worker, before, f"incarnation {incarnation} took its place"))
        return [*decisions, Note("joined", f"worker {worker} joined (incarnation {incarnation})")]

    def left(self, worker: int, incarnation: int, reason: str) -> list[Decision]:
        """A worker's link is gone. What it pushed completely still counts."""
        if self._find(worker, incarnation) is None:
            return []
        del self._workers[worker]
        return [Note("left", f"worker {worker} left: {reason}")]

    def expel_the_late(self, reason: str) -> list[Decision]:
        """Part with every worker whose gradient of the open step is not complete."""
        decisions: list[Decision] = []
        for worker in sorted(set(self._workers) - self.complete):
            incarnation = self._workers.pop(worker).incarnation
            self._times_late[worker] = self._times_late.get(worker, 0) + 1
            self._forget(worker)
            decisions.append(Expel(worker, incarnation, reason))
        return decisions

    @property
    def complete(self) -> set[int]:
        """Workers whose gradient of the open step is complete."""
        return {worker for worker, _ in self._complete}

    def _find(self, worker: int, incarnation: int) -> ConnectedWorker | None:
        connected = self._workers.get(worker)
        return connected if connected is not None and connected.incarnation == incarnation else None

    def _forget(self, worker: int) -> None:
        """Let go of what a worker pushed so far; all shards do the same when they read `Expel`."""
        self.pushes = {key: push for key, push in self.pushes.items() if key[0] != worker}
        self._complete = [key for key in self._complete if key[0] != worker]

    # -- who is sent parameters ----------------------------------------------------------------------------------

    def pulled(self, worker: int, incarnation: int, used: int, term: int, running: bool) -> list[Decision]:
        """A worker has used versions up to `used` (-1: it has nothing) of `term` and wants the newest.

        Args:
            running: whether there are parameters to give; else it is given them by `give_to_waiting`.
        """
        connected = self._find(worker, incarnation)
        if connected is None:
            return []
        connected.pulls_to_count = max(0, connected.pulls_to_count - 1)
        if used < 0:
            connected.given = []
        elif term == self.term:
            connected.uses(used)
        if not running:
            connected.waiting = True
            return []
        if self.step in connected.given or (term == self.term and used >= self.step):
            return []
        return self._give([Row(worker, incarnation, 0)])

    def give_to_waiting(self) -> list[Decision]:
        """There are parameters (again)."""
        waiting = sorted((worker, connected) for worker, connected in self._workers.items() if connected.waiting)
        return self._give([Row(worker, connected.incarnation, 0) for worker, connected in waiting])

    def _give(self, rows: list[Row]) -> list[Decision]:
        for row in rows:
            connected = self._find(row.worker, row.incarnation)
            if connected is not None:
                connected.given.append(self.step)
                connected.waiting = False
        return [Give(self.term, self.step, tuple(rows))] if rows else []

    # -- what makes a step ---------------------------------------------------------------------------------------

    def arrived(self, shard: int, row: Row, step: int, data_points: int) -> list[Decision]:
        """A shard holds a slice of this term (row.mark NONE) or has rejected it (another Code)."""
        key, bound = (row.worker, row.incarnation), self._max_staleness
        may_count = step == self.step or (self._asynchronous and step < self.step)
        if row.incarnation < self.newest.get(row.worker, 0) or not may_count:
            return []
        connected = self._find(*key)
        if connected is not None:
            connected.uses(step)
        push = self.pushes.get(key)
        if push is None or push.sequence < row.sequence:
            if key in self._complete:  # no client of ours does: the slices of its first are gone
                self._workers.pop(row.worker, None)  # it may have left, and come back
                self._forget(row.worker)
                return [Expel(*key, f"it gave two gradients for step {self.step}")]
            push = self.pushes[key] = ReportedPush(row.sequence, step)
        if push.sequence != row.sequence or row.mark != Code.NONE:
            return []
        push.data_points = max(push.data_points, data_points)
        push.shards.add(shard)
        if len(push.shards) < self._num_shards or key in self._complete:
            return []
        if self._asynchronous and bound is not None and self.step - push.step > bound:
            del self.pushes[key]
            return self._give([Row(*key, push.sequence, Code.STALE)])
        self._complete.append(key)
        return self.commit()

    def commit(self) -> list[Decision]:
        """Commit the open step if g workers are complete; `step` then is the next one."""
        if len(self._complete) < self.num_gradients:
            return []
        members = {key: self.pushes[key] for key in self._complete[: self.num_gradients]}
        for key in members:
            self._times_late.pop(key[0], None)
            if connected := self._find(*key):
                connected.pulls_to_count = 0
        before = self.data_points
        self.data_points += sum(push.data_points for push in members.values())
        staleness = tuple(self.step - push.step for push in members.values())
        step, self.step = self.step, self.step + 1
        rows = {key: Row(*key, push.sequence, MEMBER) for key, push in members.items()}
        for worker, connected in self._workers.items():
            key = (worker, connected.incarnation)
            if key in members if self._asynchronous else len(connected.given) < GIVEN_AHEAD:
                connected.given.append(self.step)
                row = rows.get(key, Row(*key, 0))
                rows[key] = row._replace(mark=row.mark | RECIPIENT)
        kept = {key: push for key, push in self.pushes.items() if self._asynchronous and key not in members}
        self.pushes, self._complete = kept, [key for key in self._complete if key in kept]
        commit = Commit(self.term, step, before, self.data_points, tuple(sorted(rows.values())), staleness)
        wanted = min(self._most_gradients, sum(not connected.pulls_to_count for connected in self._workers.values()))
        if wanted <= self.num_gradients:
            return [commit]
        self.num_gradients = wanted  # after a shrink: returned workers count again
        return [commit, Note("grown", f"step {self.step} averages {wanted} gradients again")]

    def shrink(self, num_gradients: int, why: str) -> list[Decision]:
        """Average fewer from now on, and commit what is complete."""
        self.num_gradients = num_gradients
        return [Note("shrunk", f"{why}; from now on it averages {num_gradients}"), *self.commit()]
