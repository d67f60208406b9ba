"""What shard 0 decides for all shards. Pure: facts and the time go in, decisions come out; no sockets, no clock.

Synchronous step v ends when g distinct workers' gradients of version v are complete on every shard: the first g such
are its members, and `Commit` names them, so that every shard averages the same set. All decisions reach every shard
over one ordered link, hence every worker is sent the same sequence of versions by every shard.

Asynchronous mode is the same with g = 1 and gradients of older versions allowed, up to `max_staleness`.

A worker is sent new parameters without asking as long as fewer than two versions are on their way to it (GIVEN_AHEAD);
one that is still busy then only learns that a version exists, so nobody gets a backlog of old parameters.
"""

from dataclasses import dataclass, field

from param_servers.decisions import Checkpoint, Commit, Decision, Expel, Forsake, Give, Note, Restore, Settings, Stop
from param_servers.messages import MEMBER, RECIPIENT, Code, Row

GIVEN_AHEAD = 2
Key = tuple[int, int]
"""(worker, incarnation)"""


@dataclass
class _Member:
    """A connected worker."""

    incarnation: int
    given: list[int] = field(default_factory=list)
    """Versions sent that the worker has not been seen to use yet."""
    waiting: bool = False
    """It asked for parameters while there were none to give."""


@dataclass
class _Push:
    """A gradient of the open step, as far as shards have reported it."""

    sequence: int
    step: int
    data_points: int = 0
    shards: set[int] = field(default_factory=set)


class Coordinator:
    """Membership, commits, liveness and roll-backs of one run. Every method returns the decisions that follow.

    Args:
        settings: numbers of the run.
        now_s: the time, on any monotonic clock; all later times on the same one.
        saved: (step, data_points) of the newest valid checkpoint; (0, 0) stands for the initial parameters.
        term: the newest term known from an earlier life of this run.
    """

    def __init__(self, settings: Settings, now_s: float, saved: tuple[int, int] = (0, 0), term: int = 0) -> None:
        self.settings = settings
        self.term = term
        self.step, self.data_points = saved
        self.num_gradients = settings.num_gradients
        """g now: fewer than configured after a shrink."""
        self.state = "gathering"
        """gathering servers -> restoring -> running -> stopping -> stopped"""
        self.workers: dict[int, _Member] = {}
        self.newest_incarnation: dict[int, int] = {}
        self._met: set[Key] = set()
        self._saved = saved
        self._servers: set[int] = set()
        self._ready: set[int] = set()
        self._pushes: dict[Key, _Push] = {}
        self._complete: list[Key] = []
        self._heard_s: dict[int, float] = {}
        self._since_s = now_s
        self._patience_s = settings.join_timeout_s
        self.writing_data_points = 0
        self._writing: int | None = None
        self._written: set[int] = set()
        self._ending: Stop | None = None

    # -- servers -------------------------------------------------------------------------------------------------

    def server_joined(self, shard: int, term: int, now_s: float) -> list[Decision]:
        """A shard is connected (shard 0: itself); it has seen `term`. With all of them there, all restore."""
        self._servers.add(shard)
        self._heard_s[shard] = now_s
        self.term = max(self.term, term)
        if self.state == "gathering" and len(self._servers) == self.settings.num_shards:
            return self._restore(now_s)
        return []

    def server_left(self, shard: int, now_s: float) -> list[Decision]:
        """A shard is gone: nothing can be committed until it is back, and then all roll back together."""
        self._servers.discard(shard)
        if self.state in ("stopping", "stopped"):
            return [] if self._ending is None else self._end()
        self.state, self._since_s, self._patience_s = "gathering", now_s, self.settings.join_timeout_s
        self._abandon_checkpoint()
        return [Note("server_lost", f"server {shard} is gone at step {self.step}; waiting for it to come back")]

    def server_heard(self, shard: int, now_s: float) -> None:
        """A shard has said something; each does so several times within the step timeout."""
        self._heard_s[shard] = now_s

    def server_ready(self, shard: int, term: int, now_s: float) -> list[Decision]:
        """A shard has loaded the state of the current term."""
        if term != self.term or self.state != "restoring":
            return []
        self._ready.add(shard)
        if len(self._ready) < self.settings.num_shards:
            return []
        self.state, self._since_s = "running", now_s
        decisions: list[Decision] = [Note("running", f"all {self.settings.num_shards} servers are at step {self.step}")]
        rows = [Row(worker, member.incarnation, 0) for worker, member in sorted(self.workers.items()) if member.waiting]
        return decisions + self._give(rows)

    def _restore(self, now_s: float) -> list[Decision]:
        self.term += 1
        lost = self.step - self._saved[0]
        self.step, self.data_points = self._saved
        self.state, self._since_s, self._patience_s = "restoring", now_s, self.settings.join_timeout_s
        self._ready.clear()
        self._open_step()
        self._abandon_checkpoint()
        for member in self.workers.values():
            # Every worker must hear of the new term even if it does not ask.
            member.given, member.waiting = [], True
        note = Note("restored", f"term {self.term} begins at step {self.step}; {lost} committed steps are undone")
        return [Restore(self.term, self.step, self.data_points), *([note] if lost else [])]

    # -- workers -------------------------------------------------------------------------------------------------

    def admits(self, worker: int, incarnation: int) -> str:
        """ "" or one line why this incarnation may not join."""
        newest = self.newest_incarnation.get(worker, 0)
        if incarnation < newest:
            return f"worker {worker} has a newer incarnation {newest} in this run; this is {incarnation}"
        return ""

    def worker_joined(self, worker: int, incarnation: int, term: int, now_s: float) -> list[Decision]:
        """A worker is connected to shard 0. It counts from now on; it asks for parameters with `pulled`."""
        before = self.newest_incarnation.get(worker, incarnation)
        self.newest_incarnation[worker] = incarnation
        self.workers[worker] = _Member(incarnation)
        decisions: list[Decision] = []
        if before < incarnation:
            self._forget(worker)
            decisions.append(Expel(worker, before, f"incarnation {incarnation} took its place"))
        decisions += [Note("joined", f"worker {worker} joined (incarnation {incarnation})", worker)]
        if term > self.term or (term == self.term and (worker, incarnation) not in self._met):
            # All servers died and forgot a term that this worker has seen: begin a newer one, or it would not listen.
            self.term = term
            if self.state in ("running", "restoring"):
                decisions += self._restore(now_s)
        self._met.add((worker, incarnation))
        return decisions

    def _forget(self, worker: int) -> None:
        """Let go of what earlier incarnations pushed; all shards do the same when they read `Expel`."""
        for key in [key for key in self._pushes if key[0] == worker]:
            del self._pushes[key]
        self._complete = [key for key in self._complete if key[0] != worker]

    def worker_left(self, worker: int, incarnation: int, reason: str) -> list[Decision]:
        """A worker's link to shard 0 is gone. What it pushed completely still counts."""
        member = self.workers.get(worker)
        if member is None or member.incarnation != incarnation:
            return []
        del self.workers[worker]
        return [Note("left", f"worker {worker} left: {reason}", worker)]

    def pulled(self, worker: int, incarnation: int, used: int, term: int) -> list[Decision]:
        """A worker has used versions up to `used` (-1: it has nothing) and wants the newest."""
        member = self.workers.get(worker)
        if member is None or member.incarnation != incarnation:
            return []
        if used < 0:
            member.given = []
        elif term == self.term:
            member.given = [version for version in member.given if version > used]
        if self.state != "running":
            member.waiting = True
            return []
        if self.step in member.given or (term == self.term and used >= self.step):
            return []
        return self._give([Row(worker, incarnation, 0)])

    def arrived(self, shard: int, row: Row, step: int, data_points: int, term: int, now_s: float) -> list[Decision]:
        """A shard holds a slice (row.mark NONE) or has rejected it (another Code)."""
        key = (row.worker, row.incarnation)
        superseded = row.incarnation < self.newest_incarnation.get(row.worker, 0)
        if self.state != "running" or term != self.term or superseded or not self._may_count(step):
            return []
        member = self.workers.get(row.worker)
        if member is not None and member.incarnation == row.incarnation:
            member.given = [version for version in member.given if version > step]
        push = self._pushes.get(key)
        if push is None or push.sequence < row.sequence:
            if key in self._complete:
                return []  # the coordinator never lets go of a complete push, whatever else arrives
            push = self._pushes[key] = _Push(row.sequence, step)
        if push.sequence != row.sequence or row.mark != Code.NONE:
            return []
        push.data_points = max(push.data_points, data_points)
        push.shards.add(shard)
        if len(push.shards) < self.settings.num_shards or key in self._complete:
            return []
        return self._completed(key, push, now_s)

    def _may_count(self, step: int) -> bool:
        return step == self.step or (self.settings.asynchronous and step < self.step)

    def _completed(self, key: Key, push: _Push, now_s: float) -> list[Decision]:
        bound = self.settings.max_staleness
        if self.settings.asynchronous and bound is not None and self.step - push.step > bound:
            del self._pushes[key]
            return self._give([Row(*key, push.sequence, Code.STALE)])
        self._complete.append(key)
        return self._commit(now_s)

    # -- the step ------------------------------------------------------------------------------------------------

    def _commit(self, now_s: float) -> list[Decision]:
        """Commit as soon as g workers are complete."""
        if self.state != "running" or len(self._complete) < self.num_gradients:
            return []
        keys = self._complete[: self.num_gradients]
        pushes = [self._pushes[key] for key in keys]
        before, self.data_points = self.data_points, self.data_points + sum(push.data_points for push in pushes)
        staleness = tuple(self.step - push.step for push in pushes)
        step, self.step = self.step, self.step + 1
        rows = self._rows({key: push.sequence for key, push in zip(keys, pushes, strict=True)})
        decisions: list[Decision] = [Commit(self.term, step, before, self.data_points, tuple(rows), staleness)]
        if self.settings.asynchronous:
            del self._pushes[keys[0]]
            self._complete.clear()
        else:
            self._open_step()
        self._since_s, self._patience_s = now_s, self.settings.step_timeout_s
        decisions += self._grow()
        return decisions + self._checkpoint_when_due()

    def _rows(self, members: dict[Key, int]) -> list[Row]:
        """The table of a commit: its members, and who is sent the result."""
        recipients = []
        for worker, member in sorted(self.workers.items()):
            key = (worker, member.incarnation)
            if len(member.given) < GIVEN_AHEAD and (key in members or not self.settings.asynchronous):
                member.given.append(self.step)
                recipients.append(key)
        rows = {key: Row(*key, sequence, MEMBER) for key, sequence in members.items()}
        for key in recipients:
            row = rows.get(key, Row(*key, 0))
            rows[key] = row._replace(mark=row.mark | RECIPIENT)
        return sorted(rows.values())

    def _give(self, rows: list[Row]) -> list[Decision]:
        for row in rows:
            member = self.workers.get(row.worker)
            if member is not None and member.incarnation == row.incarnation:
                member.given.append(self.step)
                member.waiting = False
        return [Give(self.term, self.step, tuple(rows))] if rows else []

    def _open_step(self) -> None:
        self._pushes.clear()
        self._complete.clear()

    def _grow(self) -> list[Decision]:
        """After a shrink: count returned workers again."""
        wanted = min(self.settings.num_gradients, len(self.workers))
        if wanted <= self.num_gradients:
            return []
        self.num_gradients = wanted
        return [Note("grown", f"step {self.step} averages {wanted} gradients again")]

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Decision]:
        """Look at the clock: nothing is waited for longer than stated."""
        if self.state == "stopped" or now_s - self._since_s <= self._patience_s:
            return []
        waited = f"within {self._patience_s:g} s"
        if self.state in ("gathering", "restoring"):
            there = self._servers if self.state == "gathering" else self._ready
            missing = sorted(set(range(self.settings.num_shards)) - there)
            return self.stop(f"{_names('server', missing)} did not come {waited}", now_s, failed=True)
        if self.state == "stopping":
            note = Note("checkpoint_failed", f"the last checkpoint was not written {waited}")
            return [note, *self._end()]
        return self._overdue(waited, now_s)

    def _overdue(self, waited: str, now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        for shard in sorted(self._servers - {0}):
            # Workers that wait for a silent server must not be blamed for it.
            if now_s - self._heard_s[shard] > self.settings.step_timeout_s / 2:
                decisions.append(Forsake(shard, f"server {shard} is silent, and step {self.step} did not end {waited}"))
                decisions += self.server_left(shard, now_s)
        if decisions:
            return decisions
        complete = {worker for worker, _ in self._complete}
        for worker in sorted(set(self.workers) - complete):
            incarnation = self.workers.pop(worker).incarnation
            self._forget(worker)
            decisions.append(Expel(worker, incarnation, f"no gradient for step {self.step} {waited}"))
        self._since_s, self._patience_s = now_s, self.settings.step_timeout_s
        return decisions + self._shrink(waited, now_s)

    def _shrink(self, waited: str, now_s: float) -> list[Decision]:
        live = len(self.workers)
        left = max(live, len(self._complete))
        if left >= self.num_gradients:
            return self._commit(now_s)
        what = f"step {self.step} needs {self.num_gradients} gradients, but {waited} only {left} workers gave one"
        if self.settings.when_lost == "stop" or left < self.settings.min_workers:
            return self.stop(f"{what} (min_workers {self.settings.min_workers})", now_s, failed=True)
        self.num_gradients = left
        return [Note("shrunk", f"{what}; from now on it averages {left}"), *self._commit(now_s)]

    # -- checkpoints and the end ---------------------------------------------------------------------------------

    def _checkpoint_when_due(self) -> list[Decision]:
        every = self.settings.checkpoint_every
        if not every or self._writing is not None or self.step // every <= self._saved[0] // every:
            return []
        return self._checkpoint()

    def _checkpoint(self) -> list[Decision]:
        self._writing = self.step
        self._written.clear()
        self.writing_data_points = self.data_points
        return [Checkpoint(self.step, self.data_points)]

    def _abandon_checkpoint(self) -> None:
        self._writing = None
        self._written.clear()

    def slice_written(self, shard: int, step: int, error: str) -> bool:
        """A shard has written its slice of checkpoint `step`; True when it was the last one."""
        if step != self._writing or error:
            return False
        self._written.add(shard)
        return len(self._written) == self.settings.num_shards

    def checkpoint_done(self, step: int, error: str) -> list[Decision]:
        """The checkpoint is published, or has failed (`error` says why); training goes on either way."""
        if step != self._writing:
            return []
        self._writing = None
        note = Note("checkpoint", f"checkpoint of step {step} written")
        if error:
            note = Note("checkpoint_failed", f"checkpoint of step {step} failed: {error}; training goes on")
        else:
            self._saved = (step, self.writing_data_points)
        return [note, *self._last_checkpoint(failed=bool(error) and step == self.step)]

    def stop(self, reason: str, now_s: float, failed: bool = False) -> list[Decision]:
        """End the run: a last checkpoint where that is possible, then Stop."""
        if self.state in ("stopping", "stopped"):
            return []
        able = self.state == "running"
        self.state, self._since_s, self._patience_s = "stopping", now_s, self.settings.write_timeout_s
        self._ending = Stop(reason, failed)
        note = Note("stopping", f"stopping at step {self.step}: {reason}")
        return [note, *(self._last_checkpoint() if able else self._end())]

    def _last_checkpoint(self, failed: bool = False) -> list[Decision]:
        if self.state != "stopping" or self._writing is not None:
            return []
        if failed or not self.settings.checkpoints or self._saved[0] == self.step:
            return self._end()
        return self._checkpoint()

    def _end(self) -> list[Decision]:
        assert self._ending is not None
        self.state = "stopped"
        return [self._ending]


def _names(what: str, ranks: list[int]) -> str:
    return f"{what}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
