"""Who is here to give gradients, which gradients make a step, and who is sent what follows. Pure.

Synchronous step v ends when g distinct workers' gradients of version v are complete on every shard: the first g such
are its members. In asynchronous mode g is 1, and gradients of older versions count, up to `max_staleness`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from param_servers.servers.decisions import Commit, Decision, Expel, Give, Note
from param_servers.wire.messages import MEMBER, RECIPIENT, Code, Row

GIVEN_AHEAD = 2
"""Versions that may be on their way to a worker that has not asked."""
Key = tuple[int, int]
"""(worker, incarnation)"""


@dataclass
class Member:
    """A connected worker."""

    incarnation: int
    given: list[int] = field(default_factory=list)
    """Versions sent that the worker has not been seen to use yet."""
    waiting: bool = False
    """It asked for parameters while there were none to give."""

    def uses(self, step: int) -> None:
        """It has version `step`, hence no use for older ones."""
        self.given = [version for version in self.given if version > step]


class Membership:
    """Which workers are connected, in which incarnation, and which versions are on their way to each."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self._newest: dict[int, int] = {}
        """Incarnation by worker, of all that ever joined."""
        self._met: set[Key] = set()

    def __len__(self) -> int:
        return len(self.members)

    def newest_incarnation(self, worker: int, default: int) -> int:
        """The newest incarnation of a worker that ever joined."""
        return self._newest.get(worker, default)

    def met(self, worker: int, incarnation: int) -> bool:
        """Whether this incarnation has joined before."""
        return (worker, incarnation) in self._met

    def join(self, worker: int, incarnation: int) -> None:
        """A worker is connected; nothing is on its way to it."""
        self.members[worker] = Member(incarnation)
        self._newest[worker] = incarnation
        self._met.add((worker, incarnation))

    def leave(self, worker: int) -> int:
        """A connected worker is no longer one; its incarnation."""
        return self.members.pop(worker).incarnation

    def find(self, worker: int, incarnation: int) -> Member | None:
        """A worker, if this incarnation of it is connected."""
        member = self.members.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def superseded(self, worker: int, incarnation: int) -> bool:
        """Whether a newer incarnation of this worker has joined."""
        return incarnation < self.newest_incarnation(worker, 0)

    def begin_term(self) -> None:
        """All versions are void; every worker must hear of the new term even if it does not ask."""
        for member in self.members.values():
            member.given, member.waiting = [], True

    def waiting(self) -> list[Row]:
        """Who waits for parameters."""
        return [Row(worker, member.incarnation, 0) for worker, member in sorted(self.members.items()) if member.waiting]

    def give(self, rows: list[Row], step: int) -> None:
        """Version `step` is on its way to these."""
        for row in rows:
            member = self.find(row.worker, row.incarnation)
            if member is not None:
                member.given.append(step)
                member.waiting = False

    def table(self, sequences: Mapping[Key, int], step: int, only_members: bool) -> list[Row]:
        """The rows of a commit that makes version `step`: its members, and who is sent the result.

        Args:
            sequences: of each member's push.
            only_members: send to members only (asynchronous mode).
        """
        rows = {key: Row(*key, sequence, MEMBER) for key, sequence in sequences.items()}
        for worker, member in self.members.items():
            key = (worker, member.incarnation)
            if len(member.given) < GIVEN_AHEAD and (key in sequences or not only_members):
                member.given.append(step)
                row = rows.get(key, Row(*key, 0))
                rows[key] = row._replace(mark=row.mark | RECIPIENT)
        return sorted(rows.values())


@dataclass
class Push:
    """A gradient, as far as shards have reported it."""

    sequence: int
    step: int
    """The version it was computed on: in synchronous mode the open step."""
    data_points: int = 0
    shards: set[int] = field(default_factory=set)


class OpenStep:
    """The gradients of the open step, by worker, as far as the shards have reported them.

    A push is complete when every shard holds its slice; the order in which pushes complete is the order in which they
    become members. A complete push is never let go of, whatever else arrives, until its step is committed or given up.

    Args:
        num_shards: reports that make a push complete.
    """

    def __init__(self, num_shards: int) -> None:
        self.pushes: dict[Key, Push] = {}
        self.complete: list[Key] = []
        """In the order of completion."""
        self._num_shards = num_shards

    def report(self, shard: int, row: Row, step: int, data_points: int) -> Push | None:
        """A shard holds a slice (row.mark NONE) or has rejected it; the push, if this made it complete on all shards.

        The caller then puts it at the end of `complete`, or drops it.
        """
        key = (row.worker, row.incarnation)
        push = self.pushes.get(key)
        if push is None or push.sequence < row.sequence:
            if key in self.complete:
                return None
            push = self.pushes[key] = Push(row.sequence, step)
        if push.sequence != row.sequence or row.mark != Code.NONE:
            return None
        push.data_points = max(push.data_points, data_points)
        push.shards.add(shard)
        return push if len(push.shards) == self._num_shards and key not in self.complete else None

    def first(self, count: int) -> dict[Key, Push]:
        """The first `count` that became complete."""
        return {key: self.pushes[key] for key in self.complete[:count]}

    def drop(self, key: Key) -> None:
        """This push will not count (again)."""
        del self.pushes[key]
        if key in self.complete:
            self.complete.remove(key)

    def forget(self, worker: int) -> None:
        """Let go of what earlier incarnations of a worker pushed; all shards do the same when they read `Expel`."""
        for key in [key for key in self.pushes if key[0] == worker]:
            self.drop(key)

    def clear(self) -> None:
        """A new step, or a new term."""
        self.pushes.clear()
        self.complete.clear()


class StepCommits:
    """The workers of a run and its open step. It knows no servers, no time and no end: see `coordinator`.

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
        self.workers = Membership()
        self.gradients = OpenStep(num_shards)
        self._asynchronous, self._max_staleness = asynchronous, max_staleness

    def begin_term(self, term: int, step: int, data_points: int) -> None:
        """All versions and gradients of earlier terms are void; go on from `step`."""
        self.term, self.step, self.data_points = term, step, data_points
        self.gradients.clear()
        self.workers.begin_term()

    # -- who is here ---------------------------------------------------------------------------------------------

    def joined(self, worker: int, incarnation: int) -> list[Decision]:
        """A worker is connected, in place of any earlier incarnation of it."""
        before = self.workers.newest_incarnation(worker, incarnation)
        self.workers.join(worker, incarnation)
        decisions: list[Decision] = []
        if before < incarnation:
            self.gradients.forget(worker)
            decisions.append(Expel(worker, before, f"incarnation {incarnation} took its place"))
        return [*decisions, Note("joined", f"worker {worker} joined (incarnation {incarnation})", worker)]

    def left(self, worker: int, incarnation: int, reason: str) -> list[Decision]:
        """A worker's link is gone. What it pushed completely still counts."""
        if self.workers.find(worker, incarnation) is None:
            return []
        self.workers.leave(worker)
        return [Note("left", f"worker {worker} left: {reason}", worker)]

    def expel_the_late(self, reason: str) -> list[Decision]:
        """Part with every worker whose gradient of the open step is not complete."""
        complete = {worker for worker, _ in self.gradients.complete}
        decisions: list[Decision] = []
        for worker in sorted(set(self.workers.members) - complete):
            incarnation = self.workers.leave(worker)
            self.gradients.forget(worker)
            decisions.append(Expel(worker, incarnation, reason))
        return decisions

    @property
    def possible_gradients(self) -> int:
        """How many the open step can get at most from those who are here or have given theirs."""
        return max(len(self.workers), len(self.gradients.complete))

    # -- who is sent parameters ----------------------------------------------------------------------------------

    def pulled(self, worker: int, incarnation: int, used: int, term: int, running: bool) -> list[Decision]:
        """A worker has used versions up to `used` (-1: it has nothing) of `term` and wants the newest.

        Args:
            running: whether there are parameters to give; else it is given them by `give_to_waiting`.
        """
        member = self.workers.find(worker, incarnation)
        if member is None:
            return []
        if used < 0:
            member.given = []
        elif term == self.term:
            member.uses(used)
        if not running:
            member.waiting = True
            return []
        if self.step in member.given or (term == self.term and used >= self.step):
            return []
        return self._give([Row(worker, incarnation, 0)])

    def give_to_waiting(self) -> list[Decision]:
        """There are parameters (again)."""
        return self._give(self.workers.waiting())

    def _give(self, rows: list[Row]) -> list[Decision]:
        self.workers.give(rows, self.step)
        return [Give(self.term, self.step, tuple(rows))] if rows else []

    # -- what makes a step ---------------------------------------------------------------------------------------

    def arrived(self, shard: int, row: Row, step: int, data_points: int) -> list[Decision]:
        """A shard holds a slice of this term (row.mark NONE) or has rejected it (another Code)."""
        if self.workers.superseded(row.worker, row.incarnation) or not self._may_count(step):
            return []
        member = self.workers.find(row.worker, row.incarnation)
        if member is not None:
            member.uses(step)
        push = self.gradients.report(shard, row, step, data_points)
        return [] if push is None else self._completed((row.worker, row.incarnation), push)

    def _may_count(self, step: int) -> bool:
        return step == self.step or (self._asynchronous and step < self.step)

    def _completed(self, key: Key, push: Push) -> list[Decision]:
        bound = self._max_staleness
        if self._asynchronous and bound is not None and self.step - push.step > bound:
            self.gradients.drop(key)
            return self._give([Row(*key, push.sequence, Code.STALE)])
        self.gradients.complete.append(key)
        return self.commit()

    def commit(self) -> list[Decision]:
        """Commit the open step if g workers are complete; `step` then is the next one."""
        if len(self.gradients.complete) < self.num_gradients:
            return []
        members = self.gradients.first(self.num_gradients)
        before = self.data_points
        self.data_points += sum(push.data_points for push in members.values())
        staleness = tuple(self.step - push.step for push in members.values())
        step, self.step = self.step, self.step + 1
        sequences = {key: push.sequence for key, push in members.items()}
        rows = self.workers.table(sequences, self.step, only_members=self._asynchronous)
        if self._asynchronous:
            for key in members:
                self.gradients.drop(key)
        else:
            self.gradients.clear()
        return [Commit(self.term, step, before, self.data_points, tuple(rows), staleness), *self._grow()]

    def _grow(self) -> list[Decision]:
        """After a shrink: count returned workers again."""
        wanted = min(self._most_gradients, len(self.workers))
        if wanted <= self.num_gradients:
            return []
        self.num_gradients = wanted
        return [Note("grown", f"step {self.step} averages {wanted} gradients again")]

    def shrink(self, num_gradients: int, why: str) -> list[Decision]:
        """Average fewer from now on, and commit what is complete."""
        self.num_gradients = num_gradients
        return [Note("shrunk", f"{why}; from now on it averages {num_gradients}"), *self.commit()]
