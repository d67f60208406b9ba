"""What shard 0 decides for all shards. Pure: facts and the time go in, decisions come out; no sockets, no clock.

Synchronous step v ends when g distinct workers' gradients of version v are complete on every shard: the first g such
are its members, and `Commit` names them, so that every shard averages the same set. All decisions reach every shard
over one ordered link, hence every worker is sent the same sequence of versions by every shard.

Asynchronous mode is the same with g = 1 and gradients of older versions allowed, up to `max_staleness`.

A worker is sent new parameters without asking as long as fewer than two versions are on their way to it (GIVEN_AHEAD
of `membership`); one that is still busy then only learns that a version exists, so nobody gets a backlog of old
parameters.
"""

from param_servers.checkpointing import Checkpointing
from param_servers.decisions import Checkpoint, Commit, Decision, Expel, Forsake, Give, Note, Restore, Settings, Stop
from param_servers.membership import Key, Membership
from param_servers.messages import Code, Row
from param_servers.open_step import OpenStep, Push


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
        self.workers = Membership()
        self.gradients = OpenStep(settings.num_shards)
        self.checkpointing = Checkpointing(settings.num_shards, settings.checkpoint_every, saved)
        self._servers: set[int] = set()
        self._ready: set[int] = set()
        self._heard_s: dict[int, float] = {}
        self._since_s = now_s
        self._patience_s = settings.join_timeout_s
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
        self.checkpointing.abandon()
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
        return decisions + self._give(self.workers.waiting())

    def _restore(self, now_s: float) -> list[Decision]:
        self.term += 1
        lost = self.step - self.checkpointing.saved[0]
        self.step, self.data_points = self.checkpointing.saved
        self.state, self._since_s, self._patience_s = "restoring", now_s, self.settings.join_timeout_s
        self._ready.clear()
        self.gradients.clear()
        self.checkpointing.abandon()
        self.workers.begin_term()
        note = Note("restored", f"term {self.term} begins at step {self.step}; {lost} committed steps are undone")
        return [Restore(self.term, self.step, self.data_points), *([note] if lost else [])]

    # -- workers -------------------------------------------------------------------------------------------------

    def admits(self, worker: int, incarnation: int) -> str:
        """ "" or one line why this incarnation may not join."""
        if self.workers.superseded(worker, incarnation):
            newest = self.workers.newest_incarnation(worker, incarnation)
            return f"worker {worker} has a newer incarnation {newest} in this run; this is {incarnation}"
        return ""

    def worker_joined(self, worker: int, incarnation: int, term: int, now_s: float) -> list[Decision]:
        """A worker is connected to shard 0. It counts from now on; it asks for parameters with `pulled`."""
        before, met = self.workers.newest_incarnation(worker, incarnation), self.workers.met(worker, incarnation)
        self.workers.join(worker, incarnation)
        decisions: list[Decision] = []
        if before < incarnation:
            self.gradients.forget(worker)
            decisions.append(Expel(worker, before, f"incarnation {incarnation} took its place"))
        decisions += [Note("joined", f"worker {worker} joined (incarnation {incarnation})", worker)]
        if term > self.term or (term == self.term and not met):
            # All servers died and forgot a term that this worker has seen: begin a newer one, or it would not listen.
            self.term = term
            if self.state in ("running", "restoring"):
                decisions += self._restore(now_s)
        return decisions

    def worker_left(self, worker: int, incarnation: int, reason: str) -> list[Decision]:
        """A worker's link to shard 0 is gone. What it pushed completely still counts."""
        if self.workers.find(worker, incarnation) is None:
            return []
        self.workers.leave(worker)
        return [Note("left", f"worker {worker} left: {reason}", worker)]

    def pulled(self, worker: int, incarnation: int, used: int, term: int) -> list[Decision]:
        """A worker has used versions up to `used` (-1: it has nothing) and wants the newest."""
        member = self.workers.find(worker, incarnation)
        if member is None:
            return []
        if used < 0:
            member.given = []
        elif term == self.term:
            member.uses(used)
        if self.state != "running":
            member.waiting = True
            return []
        if self.step in member.given or (term == self.term and used >= self.step):
            return []
        return self._give([Row(worker, incarnation, 0)])

    def arrived(self, shard: int, row: Row, step: int, data_points: int, term: int, now_s: float) -> list[Decision]:
        """A shard holds a slice (row.mark NONE) or has rejected it (another Code)."""
        superseded = self.workers.superseded(row.worker, row.incarnation)
        if self.state != "running" or term != self.term or superseded or not self._may_count(step):
            return []
        member = self.workers.find(row.worker, row.incarnation)
        if member is not None:
            member.uses(step)
        push = self.gradients.report(shard, row, step, data_points)
        return [] if push is None else self._completed((row.worker, row.incarnation), push, now_s)

    def _may_count(self, step: int) -> bool:
        return step == self.step or (self.settings.asynchronous and step < self.step)

    def _completed(self, key: Key, push: Push, now_s: float) -> list[Decision]:
        bound = self.settings.max_staleness
        if self.settings.asynchronous and bound is not None and self.step - push.step > bound:
            self.gradients.drop(key)
            return self._give([Row(*key, push.sequence, Code.STALE)])
        self.gradients.complete.append(key)
        return self._commit(now_s)

    # -- the step ------------------------------------------------------------------------------------------------

    def _commit(self, now_s: float) -> list[Decision]:
        """Commit as soon as g workers are complete."""
        if self.state != "running" or len(self.gradients.complete) < self.num_gradients:
            return []
        members = self.gradients.first(self.num_gradients)
        before = self.data_points
        self.data_points += sum(push.data_points for push in members.values())
        staleness = tuple(self.step - push.step for push in members.values())
        step, self.step = self.step, self.step + 1
        sequences = {key: push.sequence for key, push in members.items()}
        rows = self.workers.table(sequences, self.step, only_members=self.settings.asynchronous)
        decisions: list[Decision] = [Commit(self.term, step, before, self.data_points, tuple(rows), staleness)]
        if self.settings.asynchronous:
            for key in members:
                self.gradients.drop(key)
        else:
            self.gradients.clear()
        self._since_s, self._patience_s = now_s, self.settings.step_timeout_s
        decisions += self._grow()
        return decisions + (self._checkpoint() if self.checkpointing.due(self.step) else [])

    def _give(self, rows: list[Row]) -> list[Decision]:
        self.workers.give(rows, self.step)
        return [Give(self.term, self.step, tuple(rows))] if rows else []

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
        complete = {worker for worker, _ in self.gradients.complete}
        for worker in sorted(set(self.workers.members) - complete):
            incarnation = self.workers.leave(worker)
            self.gradients.forget(worker)
            decisions.append(Expel(worker, incarnation, f"no gradient for step {self.step} {waited}"))
        self._since_s, self._patience_s = now_s, self.settings.step_timeout_s
        return decisions + self._shrink(waited, now_s)

    def _shrink(self, waited: str, now_s: float) -> list[Decision]:
        left = max(len(self.workers), len(self.gradients.complete))
        if left >= self.num_gradients:
            return self._commit(now_s)
        what = f"step {self.step} needs {self.num_gradients} gradients, but {waited} only {left} workers gave one"
        if self.settings.when_lost == "stop" or left < self.settings.min_workers:
            return self.stop(f"{what} (min_workers {self.settings.min_workers})", now_s, failed=True)
        self.num_gradients = left
        return [Note("shrunk", f"{what}; from now on it averages {left}"), *self._commit(now_s)]

    # -- checkpoints and the end ---------------------------------------------------------------------------------

    def _checkpoint(self) -> list[Decision]:
        self.checkpointing.begin(self.step, self.data_points)
        return [Checkpoint(self.step, self.data_points)]

    def checkpoint_done(self, step: int, error: str) -> list[Decision]:
        """The checkpoint is published, or has failed (`error` says why); training goes on either way."""
        if not self.checkpointing.done(step, bool(error)):
            return []
        note = Note("checkpoint", f"checkpoint of step {step} written")
        if error:
            note = Note("checkpoint_failed", f"checkpoint of step {step} failed: {error}; training goes on")
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
        if self.state != "stopping" or self.checkpointing.busy:
            return []
        if failed or not self.settings.checkpoints or self.checkpointing.saved[0] == self.step:
            return self._end()
        return self._checkpoint()

    def _end(self) -> list[Decision]:
        assert self._ending is not None
        self.state = "stopped"
        return [self._ending]


def _names(what: str, ranks: list[int]) -> str:
    return f"{what}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
