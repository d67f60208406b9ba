"""Following a live run from a process that is not part of its training: has it ended, is there a new checkpoint?

How a run's end reaches its evaluators: stop.json says why, and whether the run has had what it was to have; then each
process that decides about the end says that it has left (`RunFolder.note_left`), its last checkpoint written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from dba3c.config import TrainConfig
from dba3c.runs.checkpoints import Policy, checkpoint_steps, load_policy
from dba3c.runs.run_folder import RunFolder
from param_servers.errors import CheckpointUnreadable, RunBroken, SnapshotError

LOOK_S = 1.0
GONE_AFTER_S = 60.0
"""A launch whose lock nobody holds for this long is gone."""
LATE_S = 10.0
"""Longest wait for further processes of the training after the first has ended."""


class RunEnd:
    """Called as often as one likes, looks into the run folder once in `look_s`: why the run has ended, None while it
    has not. Reasons: it was asked to stop, or its launch noted its end.

    Raises RunBroken when the launch is gone without a word.

    Attributes:
        finished: it has had what it was to have, and nobody has stopped it.
    """

    def __init__(self, folder: RunFolder, *, look_s: float = LOOK_S, gone_after_s: float = GONE_AFTER_S) -> None:
        self._folder = folder
        self._look_s = look_s
        self._gone_after_s = gone_after_s
        self._reason: str | None = None
        self.finished = False
        self._next_look_s = 0.0
        self._seen_alive_s = time.monotonic()

    def __call__(self) -> str | None:
        now_s = time.monotonic()
        if self._reason is None and now_s >= self._next_look_s:
            self._next_look_s = now_s + self._look_s
            self._reason = self._look(now_s)
        elif self.finished and now_s >= self._next_look_s:
            self._next_look_s = now_s + self._look_s
            self.finished = self._folder.has_finished()
        return self._reason

    def _look(self, now_s: float) -> str | None:
        reason = self._folder.stop_reason()
        if reason is not None:
            self.finished = self._folder.has_finished()
            return reason
        status = self._folder.status()
        if status == "finished":
            return str(self._folder.life()["ended"].get("reason", "the run has ended"))
        if status == "live":
            self._seen_alive_s = now_s
        elif now_s - self._seen_alive_s > self._gone_after_s:
            waited = f"nobody has held its lock for {self._gone_after_s:.0f} s"
            raise RunBroken(f"the launch of {self._folder.path} is gone: {waited}")
        return None


class Overtime:
    """Why an evaluator has to leave its games now, None while it may play on; called as often as one likes.

    It may as long as the run goes on; then, when the run has had what it was to have, until `evaluation_budget_s` after
    the training has ended: half of it with a checkpoint that is not the last. Not when somebody has stopped the run,
    before its end or after.

    Attributes:
        step: of the checkpoint that is played with.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        run_end: RunEnd,
        look_s: float = LOOK_S,
    ) -> None:
        exchange = config.exchange
        if exchange.exchange in ("servers", "async"):
            role, count = "server", exchange.num_servers
        else:
            role, count = "learner" if config.central.mode == "central" else "worker", exchange.num_workers
        self.step = 0
        self.budget_s = config.run.evaluation_budget_s
        self._folder, self._run_end, self._look_s = folder, run_end, look_s
        self._awaited = [(role, rank) for rank in range(count)]
        self._write_s = exchange.checkpoint_timeout_s
        self._next_look_s = 0.0
        self._asked_s: float | None = None
        self._first_ended_s: float | None = None
        self._ended_s: float | None = None
        self._last_step = 0

    def __call__(self) -> str | None:
        reason = self._run_end()
        if reason is None:
            return None
        if not self._run_end.finished:
            return f"somebody waits for the run's end ({reason})"
        if not self.training_has_ended():
            return None
        assert self._ended_s is not None
        left_s = self.budget_s if self.step == self._last_step else self.budget_s / 2
        over = time.monotonic() - self._ended_s >= left_s
        return f"{left_s:.0f} s after the run's end were over" if over else None

    def training_has_ended(self) -> bool:
        """Whether the last checkpoint is there. Asked after the run's end; true at last, whoever says nothing."""
        now_s = time.monotonic()
        if self._ended_s is None and now_s >= self._next_look_s:
            self._next_look_s = now_s + self._look_s
            self._asked_s = self._asked_s or now_s
            ended = sum(self._folder.has_left(*process) for process in self._awaited)
            if ended and self._first_ended_s is None:
                self._first_ended_s = now_s
            late = self._first_ended_s is not None and now_s - self._first_ended_s > LATE_S
            if ended == len(self._awaited) or late or now_s - self._asked_s > self._write_s + LATE_S:
                self._ended_s = now_s
                self._last_step = max(checkpoint_steps(self._folder.checkpoints), default=0)
        return self._ended_s is not None


class CheckpointWatch:
    """Hands out each new checkpoint of a run; the newest one when several came meanwhile.

    Args:
        run_end: ends the waiting.
        is_done: whether a policy was dealt with already, in an earlier life of this role.
        say: called with one line for each torn checkpoint.

    Attributes:
        unreadable: step of the checkpoint that the last look could not read, which is looked at again; None: it could.
        passed_over: steps that came since the last policy was handed out and are older than the one handed out now.
    """

    def __init__(
        self,
        folder: RunFolder,
        run_end: Callable[[], str | None],
        *,
        is_done: Callable[[Policy], bool] = lambda policy: False,
        say: Callable[[str], None],
        look_s: float = LOOK_S,
    ) -> None:
        self._checkpoints = folder.checkpoints
        self._run_end = run_end
        self._is_done = is_done
        self._say = say
        self._look_s = look_s
        self._seen: set[tuple[int, int]] = set()
        self._first_look = True
        self.unreadable: int | None = None
        self.passed_over: list[int] = []

    def wait(self) -> Policy | None:
        """The next new policy; None when the run has ended. Bounded by the run's life, which `run_end` watches."""
        while self._run_end() is None:
            policy = self.newest_unseen()
            if policy is not None:
                return policy
            time.sleep(self._look_s)
        return None

    def newest_unseen(self) -> Policy | None:
        """The newest whole checkpoint that was not there at the last look; the others count as seen, too."""
        unseen = self._made() - self._seen
        self._seen |= unseen
        first_look, self._first_look = self._first_look, False
        steps = sorted(step for step, _ in unseen)
        while steps:
            step = steps.pop()
            try:
                policy = load_policy(self._checkpoints / f"step-{step}")
            except SnapshotError as error:
                self._say(f"skipped: {error}")
                continue
            except CheckpointUnreadable as error:  # nothing is known about it: the next look tries again
                self._seen = {seen for seen in self._seen if seen[0] != step}
                if step != self.unreadable:
                    self.unreadable = step
                    self._say(str(error))
                return None
            self.unreadable = None
            if self._is_done(policy):
                return None
            self.passed_over = [] if first_look else steps
            return policy
        return None

    def _made(self) -> set[tuple[int, int]]:
        """(step, when its directory was made, ns) of every checkpoint: after a roll-back a step is made anew."""
        made = set()
        for step in checkpoint_steps(self._checkpoints):
            with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                made.add((step, (self._checkpoints / f"step-{step}").stat().st_mtime_ns))
        return made
