"""What shard 0 decides for all shards. Pure: facts and the time go in, decisions come out; no sockets, no clock.

Which gradients make a step is decided by `step_commits`; here: when there are servers to take it, for how long anybody
is waited for, the way back to a checkpoint, and the end. `Commit` names a step's members, so that every shard averages
the same set. All decisions reach every shard over one ordered link, hence every worker is sent the same sequence of
versions by every shard.

A worker is sent new parameters without asking as long as fewer than two versions are on their way to it (GIVEN_AHEAD
of `step_commits`); one that is still busy then only learns that a version exists, so nobody gets a backlog of old
parameters.
"""

from param_servers.checkpoint.writer import CheckpointProgress, steps_lost
from param_servers.config import ExchangeConfig
from param_servers.servers.step_commits import Decision, Forsake, Note, Restore, StepCommits, Stop, WriteCheckpoint
from param_servers.wire.messages import Row

MOST_RESTORES = 20
"""In a row without a checkpoint written between them: whatever takes the servers apart so often, no step lasts."""


class Coordinator:
    """Servers, patience, roll-backs and the end of one run. Every method returns the decisions that follow.

    Args:
        config: the run's.
        now_s: the time, on any monotonic clock; all later times on the same one.
        saved: (step, data_points) of the newest valid checkpoint; (0, 0) stands for the initial parameters.
        term: the newest term known from an earlier life of this run.
        checkpoints: whether there is somewhere to write them.
    """

    def __init__(
        self,
        config: ExchangeConfig,
        now_s: float,
        saved: tuple[int, int] = (0, 0),
        term: int = 0,
        checkpoints: bool = False,
    ) -> None:
        self._config, self._num_shards, self._timeouts = config, config.num_servers, config.timeouts
        self._has_checkpoints = checkpoints
        self.state = "gathering"
        """gathering servers -> restoring -> running -> stopping -> stopped"""
        self.steps = StepCommits(
            self._num_shards,
            config.gradients_per_step,
            saved,
            term,
            asynchronous=config.exchange == "async",
            max_staleness=config.max_staleness,
        )
        self.checkpointing = CheckpointProgress(
            self._num_shards, config.checkpoint_every_steps if checkpoints else 0, saved
        )
        self._restores = 0
        """Since a checkpoint was last written."""
        self._ready: set[int] = set()
        self._heard_s: dict[int, float] = {}
        self._since_s, self._patience_s = now_s, self._timeouts.join_s
        self._missing = dict.fromkeys(range(self._num_shards), (now_s, self._patience_s))
        """Servers that are not here: since when, and for how long they are waited for."""
        self._ending: Stop | None = None
        self._written_since_s, self._told_late = now_s, False
        """Since when the checkpoint in the making is waited for, and whether that was told."""

    @property
    def term(self) -> int:
        """Grows with each roll-back."""
        return self.steps.term

    @property
    def step(self) -> int:
        """The open step: the number of updates committed before it."""
        return self.steps.step

    @property
    def data_points(self) -> int:
        """Data points of all committed gradients of the run."""
        return self.steps.data_points

    def _wait(self, now_s: float, patience_s: float) -> None:
        self._since_s, self._patience_s = now_s, patience_s

    # -- servers -------------------------------------------------------------------------------------------------

    def server_joined(self, shard: int, term: int, now_s: float) -> list[Decision]:
        """A shard is connected (shard 0: itself); it has seen `term`. With all of them there, all restore; at the end
        of a run none does any more, and it stays lost."""
        if self.state in ("stopping", "stopped"):
            return []
        self._missing.pop(shard, None)
        self._heard_s[shard] = now_s
        self.steps.term = max(self.term, term)
        if self.state == "gathering" and not self._missing:
            return self._restore(now_s)
        return []

    def server_left(self, shard: int, now_s: float) -> list[Decision]:
        """A shard is gone: nothing can be committed until it is back, and then all roll back together."""
        self._missing[shard] = (now_s, self._timeouts.server_return_s)
        self._ready.discard(shard)
        if self.state in ("stopping", "stopped"):
            needed = self.state == "stopping" and shard in self.checkpointing.missing
            return self._end(_are_gone([shard])) if needed else []
        self.state = "gathering"
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
        if len(self._ready) < self._num_shards:
            return []
        self.state = "running"
        self._wait(now_s, self._timeouts.first_step_s)
        note = Note("running", f"all {self._num_shards} servers are at step {self.step}")
        return [note, *self.steps.give_to_waiting()]

    def _restore(self, now_s: float) -> list[Decision]:
        self.state = "restoring"
        self._wait(now_s, self._timeouts.disk_s)
        self.checkpointing.abandon()
        if self.checkpointing.busy:  # one is being published, and is gone back to when it is
            return []
        term, (step, data_points) = self.term + 1, self.checkpointing.saved
        self._restores += 1
        if self._restores > MOST_RESTORES:
            what = f"the servers went back to step {step} {MOST_RESTORES} times and never came to the next checkpoint"
            return self.stop(what, now_s, failed=True)
        self._ready.clear()
        lost = self.step - step
        self.steps.begin_term(term, step, data_points)
        note = Note("restored", f"term {term} begins at step {step}; {lost} committed steps are undone")
        return [Restore(term, step, data_points), *([note] if lost else [])]

    # -- workers -------------------------------------------------------------------------------------------------

    def worker_joined(self, worker: int, incarnation: int, term: int, now_s: float) -> list[Decision]:
        """A worker is connected to shard 0. It counts from now on; it asks for parameters with `pulled`."""
        met = self.steps.newest.get(worker) == incarnation
        decisions = self.steps.joined(worker, incarnation)
        if self.state in ("stopping", "stopped"):  # the last checkpoint is of this term
            return decisions
        if term > self.term or (term == self.term and not met):
            # All servers died and forgot a term that this worker has seen: begin a newer one, or it would not listen.
            self.steps.term = term
            if self.state in ("running", "restoring"):
                decisions += self._restore(now_s)
        return decisions

    def pulled(self, worker: int, incarnation: int, used: int, term: int) -> list[Decision]:
        """A worker has used versions up to `used` (-1: it has nothing) and wants the newest."""
        return self.steps.pulled(worker, incarnation, used, term, running=self.state == "running")

    def arrived(self, shard: int, row: Row, step: int, data_points: int, term: int, now_s: float) -> list[Decision]:
        """A shard holds a slice (row.mark NONE) or has rejected it (another Code)."""
        if self.state != "running" or term != self.term:
            return []
        open_step = self.step
        decisions = self.steps.arrived(shard, row, step, data_points)
        return decisions if self.step == open_step else decisions + self._step_ended(now_s)

    def _step_ended(self, now_s: float) -> list[Decision]:
        self._wait(now_s, self._timeouts.step_s)
        return self._checkpoint() if self.checkpointing.due(self.step) else []

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Decision]:
        """Look at the clock: nothing is waited for longer than stated."""
        return [*self._late_checkpoint(now_s), *self._waited(now_s)]

    def _late_checkpoint(self, now_s: float) -> list[Decision]:
        """Training goes on without, and nobody would know: it is told once."""
        late = self.checkpointing.missing
        is_late = late and now_s - self._written_since_s >= self._timeouts.disk_s
        if self.state != "running" or self._told_late or not is_late:
            return []
        self._told_late = True
        what = f"{_names('server', late)} did not write the checkpoint of step {self.checkpointing.step} within"
        return [Note("checkpoint_late", f"{what} {self._timeouts.disk_s:g} s; none follows before they have")]

    def _waited(self, now_s: float) -> list[Decision]:
        if self.state == "gathering":
            return self._give_up_servers(now_s)
        if self.state == "stopped" or now_s - self._since_s <= self._patience_s:
            return []
        waited = f"within {self._patience_s:g} s"
        if self.state == "restoring":
            slow = sorted(set(range(self._num_shards)) - self._ready)
            if len(slow) == self._num_shards:
                slow = [0]  # which sets later checkpoints aside before it asks the others
            what = f"{_names('server', slow)} did not load step {self.step}"
            if self.checkpointing.busy:
                what = f"server 0 did not publish the checkpoint of step {self.checkpointing.step}"
            return self.stop(f"{what} {waited}", now_s, failed=True)
        if self.state == "stopping":
            note = Note("checkpoint_failed", f"the last checkpoint was not written {waited}")
            return [note, *self._end(f"not {waited}")]
        # Workers that wait for a silent server must not be blamed for it.
        return self._forsake_silent_servers(waited, now_s) or self._go_on_without_the_late(waited, now_s)

    def _give_up_servers(self, now_s: float) -> list[Decision]:
        late = {shard: wait for shard, wait in self._missing.items() if now_s - wait[0] > wait[1]}
        if not late:
            return []
        patience_s = max(patience_s for _, patience_s in late.values())
        return self.stop(f"{_names('server', sorted(late))} did not come within {patience_s:g} s", now_s, failed=True)

    def _forsake_silent_servers(self, waited: str, now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        for shard in range(1, self._num_shards):
            if now_s - self._heard_s[shard] > self._timeouts.server_silence_s:
                decisions.append(Forsake(shard, f"server {shard} is silent, and step {self.step} did not end {waited}"))
                decisions += self.server_left(shard, now_s)
        return decisions

    def _go_on_without_the_late(self, waited: str, now_s: float) -> list[Decision]:
        steps, config = self.steps, self._config
        left, absent = len(steps.complete), sorted(set(range(config.num_workers)) - steps.complete)
        what = (
            f"step {self.step} needs {steps.num_gradients} gradients, but {waited} only {left} workers gave one, "
            f"not {_names('worker', absent)}"
        )
        if left < config.min_workers:  # the late stay: they are to hear why it ends
            return self.stop(f"{what} (min_workers {config.min_workers})", now_s, failed=True)
        decisions = steps.expel_the_late(f"no gradient for step {self.step} {waited}")
        return [*decisions, *steps.shrink(left, what), *self._step_ended(now_s)]

    # -- checkpoints and the end ---------------------------------------------------------------------------------

    def _checkpoint(self) -> list[Decision]:
        self._written_since_s, self._told_late = self._since_s, False  # a step has just ended, or the run is stopping
        self.checkpointing.begin(self.step, self.data_points)
        return [WriteCheckpoint(self.step, self.data_points)]

    def checkpoint_done(self, step: int, error: str, now_s: float) -> list[Decision]:
        """The checkpoint is published, or has failed (`error` says why); training goes on either way."""
        if not self.checkpointing.done(step, error):
            return []
        note = Note("checkpoint", f"checkpoint of step {step} written")
        self._restores = self._restores if error else 0
        if error:
            note = Note("checkpoint_failed", f"checkpoint of step {step} failed: {error}; training goes on")
        if self.state == "restoring":
            return [note, *self._restore(now_s)]
        return [note, *self._last_checkpoint(failed=bool(error) and step == self.step)]

    def may_stop(self, now_s: float) -> bool:
        """Whether a request to stop would be obeyed now."""
        if self.state == "restoring":
            return not self.checkpointing.busy  # an end before it is published would call its steps lost
        if self.state != "gathering" or self.step == self.checkpointing.saved[0]:
            return self.state not in ("stopping", "stopped")
        return now_s - min(since_s for since_s, _ in self._missing.values()) > self._timeouts.stop_after_s

    def stop(self, reason: str, now_s: float, failed: bool = False) -> list[Decision]:
        """End the run: a last checkpoint where that is possible, then Stop."""
        if self.state in ("stopping", "stopped"):
            return []
        self.state = "stopping"
        self._wait(now_s, self._timeouts.disk_s)
        self._ending = Stop(reason, failed)
        note = Note("stopping", f"stopping at step {self.step}: {reason}")
        return [note, *self._last_checkpoint()]

    def _last_checkpoint(self, failed: bool = False) -> list[Decision]:
        if self.state != "stopping" or self.checkpointing.busy:
            return []
        if failed or not self._has_checkpoints or self.checkpointing.saved[0] == self.step:
            return self._end()
        if gone := sorted(set(range(self._num_shards)) - self._ready):  # one may be back, but without its state
            return self._end(_are_gone(gone))
        return self._checkpoint()

    def _end(self, why_unsaved: str = "") -> list[Decision]:
        """Stop as it was asked to; not so where committed steps are in no checkpoint though there is a place for them.

        Args:
            why_unsaved: what kept the last checkpoint from being written, where that is no failure of the disk.
        """
        assert self._ending is not None
        self.state = "stopped"
        saved = self.checkpointing.saved[0]
        if not self._has_checkpoints or saved == self.step:
            return [self._ending]
        lost = steps_lost(saved, why_unsaved or self.checkpointing.failure)
        return [Stop(f"{self._ending.reason}; {lost}", failed=True)]


def _are_gone(servers: list[int]) -> str:
    return f"{_names('server', servers)} {'are' if len(servers) > 1 else 'is'} gone"


def _names(what: str, ranks: list[int]) -> str:
    return f"{what}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
