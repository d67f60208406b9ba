"""A whole copy of the model in one process: parameters, optimizer, step, and its way to the checkpoints.

One process trains on one, which is `LocalExchange`: each gradient is an update. In an all-reduce every rank holds one,
and all are equal.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from param_servers.checkpoint.files import checkpoints_in, find_newest, load_checkpoint, set_aside_after
from param_servers.checkpoint.writer import CheckpointFiles, steps_lost
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import CheckpointError, CheckpointUnreadable, LastStepsLost, RunStopped
from param_servers.exchange import OnEvent, OnReport, Pull, Receipt, ShouldStop, check_rejected, never, unread, whole
from param_servers.layout import FlatLayout, ShardPlan
from param_servers.optim import State
from param_servers.servers.shard import Shard, is_usable
from param_servers.timeouts import clock_of_a_loop

REPORT_EVERY_S = 1.0


class Replica:
    """Parameters [P] and optimizer at one step.

    Args:
        layout: names the tensors in checkpoints.
        initial_parameters: [P] float32, the parameters of step 0; copied.
        optimizer_config, exchange_config: settings; those of the exchange say when checkpoints are due.
        checkpoint_dir: where they go; None: nowhere.
        on_event: hears of checkpoints written, skipped and failed.
    """

    def __init__(
        self,
        layout: FlatLayout,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig,
        checkpoint_dir: str | Path | None = None,
        on_event: OnEvent = unread,
    ) -> None:
        layout.check(initial_parameters)
        self.layout, self.shard = layout, Shard(initial_parameters, optimizer_config)
        self.step = self.data_points = self.term = 0
        self._config = exchange_config
        self._on_event = on_event
        self._plan = ShardPlan(layout, (0, layout.numel))
        self._pulled = self.shard.parameters.clone()
        self._checkpoints = CheckpointFiles(checkpoint_dir, self._plan, 0)
        self._directory = self._checkpoints.directory
        self._saved = self._safe = self.step
        """The step of the newest checkpoint that was begun, and of the newest that is there."""
        self._failure = ""

    @property
    def reached(self) -> int:
        """The furthest step that this copy or a checkpoint is at, another rank's as far as `finish` has found it."""
        return max(self.step, self._safe)

    def pull(self) -> Pull:
        """The parameters in a buffer that stays constant until the next `pull`."""
        self._pulled.copy_(self.shard.parameters)
        return Pull(self._pulled, self.step, self.data_points)

    def commit(self, gradient: Tensor, data_points: int) -> None:
        """One update with a mean gradient [P], of any device and float dtype, that brings in `data_points`."""
        with torch.no_grad(), _ctrl_c_waits():
            self.shard.apply([gradient.to("cpu", torch.float32)], self.learning_rate)
            self.step += 1
            self.data_points += data_points

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return self.shard.learning_rate(self.data_points)

    def note(self, event: str, message: str) -> None:
        """Tell `on_event` what happened at this step."""
        self._on_event({"event": event, "message": message, "step": self.step})

    # -- state as tensors, to hand to another rank -----------------------------------------------------------------

    def counters(self) -> Tensor:
        """[3] int64: step, data points, term."""
        return torch.tensor([self.step, self.data_points, self.term], device="cpu")

    def packed(self) -> Tensor:
        """Parameters, moments and the optimizer's counters in one float32 buffer; see `unpack`."""
        state = self.shard.optimizer_state()
        return torch.cat([self.shard.parameters, *(state[name].reshape(-1) for name in sorted(state))])

    def unpack(self, counters: Tensor, packed: Tensor) -> None:
        """Become the replica of which these are `counters()` and `packed()`."""
        state: State = self.shard.optimizer_state()
        start = self.layout.numel
        parts = {}
        for name in sorted(state):
            parts[name] = packed[start : start + state[name].numel()].view(state[name].shape)
            start += state[name].numel()
        self.shard.load(packed[: self.layout.numel], parts)
        self.step, self.data_points, self.term = (int(value) for value in counters)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def restore_newest(self) -> None:
        """Load the newest valid checkpoint, if there is one.

        Raises:
            CheckpointError: it is of another model or optimizer, or there are some and none is whole, or a damaged one
                cannot be renamed.
            CheckpointUnreadable: the file system does not let them be read.
        """
        if self._directory is None:
            return
        looked_at = checkpoints_in(self._directory)  # what another rank publishes meanwhile is whole
        path = self._load_newest(self._directory, lambda line: self.note("checkpoint_skipped", line))
        if path is not None:
            try:
                set_aside_after(self._directory, self.step, looked_at)  # what is later is damaged
            except OSError as error:
                raise CheckpointError(f"a damaged checkpoint cannot be renamed: {error}") from error
            self.term += self._config.num_workers  # survivors of the last life wrote as its term + rank: swept as older
            self.note("restored", f"going on from checkpoint {path.name}")

    def look_for_newest(self) -> None:
        """As `restore_newest`, of a rank to which another one may hand its state: it renames nothing, and goes on
        without what it cannot read, for whether the run may is rank 0's to say."""
        if self._directory is None:
            return
        try:
            self._load_newest(self._directory)
        except (CheckpointError, CheckpointUnreadable) as error:
            self.note("checkpoint_skipped", f"another rank's state is waited for: {error}")

    def _load_newest(self, directory: Path, on_skip: Callable[[str], None] = lambda line: None) -> Path | None:
        """Raises CheckpointError, CheckpointUnreadable."""
        path = find_newest(directory, on_skip)
        if path is not None:
            checkpoint = load_checkpoint(path)
            self.shard.load(*checkpoint.slice_for(self._plan, 0))
            self.step, self.data_points, self.term = checkpoint.step, checkpoint.data_points, checkpoint.term
            self._saved = self._safe = self.step
        return path

    def set_aside_later(self) -> None:
        """Checkpoints of later steps than this one are renamed meanwhile: the run does not go on from them.

        Where the disk cannot, the next `checkpoint_when_due` or `finish` raises CheckpointError.
        """
        self._checkpoints.set_aside_after(self.step, lambda: None)

    def checkpoint_when_due(self) -> None:
        """Begin to write a checkpoint where the configuration wants one; the disk works while training goes on."""
        if self._directory is None:
            return
        self._checkpoints.poll()
        every = self._config.checkpoint_every_steps
        if every and self.step // every > self._saved // every and not self._checkpoints.busy:
            self._checkpoints.make_room(self.step, self.term)
            self._write()

    def finish(self) -> str:
        """Write a last checkpoint and wait for it, for a bounded time; "", or one line that says what is lost.

        Not where there is one of this step, or a later one: it is from a rank that ended the run without this one.
        """
        checkpoints = self._checkpoints
        if self._directory is None:
            return ""

        def newest() -> dict[str, Any]:
            return {"step": checkpoints.newest(lambda line: None)[0]}

        def write_unless_there(answer: dict[str, Any]) -> None:
            there = answer.get("step", -1)
            self._safe = max(self._safe, there)
            if there < self.step:
                self._write()

        now_s = clock_of_a_loop().now_s
        deadline_s = now_s() + self._config.timeouts.disk_s
        self._wait(now_s, deadline_s)
        if self._safe < self.step and not checkpoints.busy:
            checkpoints.submit(newest, write_unless_there)
            self._wait(now_s, deadline_s)
        return "" if self._safe >= self.step else steps_lost(self._safe, self._failure)

    def close(self) -> None:
        """Let go of the writing thread."""
        self._checkpoints.close()

    def _write(self) -> None:
        checkpoints, step, term, data_points = self._checkpoints, self.step, self.term, self.data_points
        self._saved = step

        def written(entry: dict[str, Any]) -> None:
            if "error" in entry:
                done(entry)
                return
            checkpoints.publish(step, term, data_points, [entry], self._config.checkpoints_kept, done)

        def done(answer: dict[str, Any]) -> None:
            if "error" in answer:
                self._failure = answer["error"]
                self.note("checkpoint_failed", f"checkpoint of step {step} failed: {self._failure}; training goes on")
            else:
                self._safe = step
                self.note("checkpoint", f"checkpoint of step {step} written")

        checkpoints.write(step, term, self.shard.published(), self.shard.optimizer_state(), written)

    def _wait(self, now_s: Callable[[], float], deadline_s: float) -> None:
        checkpoints = self._checkpoints
        checkpoints.poll()
        while checkpoints.busy:
            if now_s() > deadline_s:
                self._failure = f"not within {self._config.timeouts.disk_s:g} s"
                self.note("checkpoint_failed", f"the last checkpoint was not written: {self._failure}")
                return
            time.sleep(0.001)
            checkpoints.poll()


class ReplicaReport:
    """Counts, and about once a second calls `on_report` with what was counted since the last time.

    Like a server's (`servers.server.Reporter`), but for the time and for stale gradients, which workers count.

    Keys: step, term, data_points_total, active_workers, num_gradients, commits, rejected (of a majority, by rank 0),
    update_norm (L2, of one update, the first since the last report), first_moment_norm and second_moment_norm (L2,
    where the optimizer keeps them), learning_rate, collective_s and applying_s (seconds of the sums and of the updates;
    parts of what the process spends in `push`, so not sections of its time beside that), window_s.
    """

    def __init__(self, replica: Replica, on_report: OnReport, *, workers: int = 1) -> None:
        self.active_workers = self.num_gradients = workers
        self._replica, self._on_report = replica, on_report
        self._is_read = on_report is not unread
        self._start()

    def _start(self) -> None:
        self.commits = self.rejected = 0
        self.collective_s = self.applying_s = 0.0
        self._since_s = time.monotonic()
        if self._is_read:
            self._replica.shard.measure_next_update()

    def maybe(self, last: bool = False) -> None:
        """Report if it is time, or if this is the `last` one, and something was committed."""
        window_s = time.monotonic() - self._since_s
        if not self._is_read or not self.commits or (window_s < REPORT_EVERY_S and not last):
            return
        replica = self._replica
        self._on_report(
            {
                "step": replica.step,
                "term": replica.term,
                "data_points_total": replica.data_points,
                "active_workers": self.active_workers,
                "num_gradients": self.num_gradients,
                "commits": self.commits,
                "rejected": self.rejected,
                "update_norm": replica.shard.update_norm,
                **replica.shard.moment_norms(),
                "learning_rate": replica.learning_rate,
                "collective_s": self.collective_s,
                "applying_s": self.applying_s,
                "window_s": window_s,
            }
        )
        self._start()


class LocalExchange:
    """`GradientExchange` without a network. Goes on from the newest checkpoint, if there is one. It clips nothing, nor
    does any exchange: `param_servers.optim.ClippedExchange` around it does.

    Args:
        layout, initial_parameters, optimizer_config, exchange_config: see `Replica`.
        checkpoint_dir, on_event: see `Replica`.
        should_stop: asked before each step.
        on_report: called about once a second with the figures of `ReplicaReport`.
    """

    def __init__(
        self,
        *,
        layout: FlatLayout,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig | None = None,
        checkpoint_dir: str | Path | None = None,
        should_stop: ShouldStop = never,
        on_report: OnReport = unread,
        on_event: OnEvent = unread,
    ) -> None:
        settings = exchange_config or ExchangeConfig()
        self.replica = Replica(layout, initial_parameters, optimizer_config, settings, checkpoint_dir, on_event)
        self.replica.restore_newest()
        self._should_stop, self._report = should_stop, ReplicaReport(self.replica, on_report)
        self._rejected_in_a_row = 0
        self._lost: str | None = None
        """What the end has cost; None: it has not ended."""

    def pull(self) -> Pull:
        reason = self._should_stop(self.replica.step, self.replica.data_points)
        if reason is not None:
            self._lost = self.replica.finish()
            raise how_it_ended(reason, self._lost)
        return self.replica.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        data_points = whole(data_points)
        reason = refusal(gradient, step, self.replica)
        if reason == "non-finite":
            self._report.rejected += 1
            self._rejected_in_a_row += 1
            check_rejected(self._rejected_in_a_row, self.replica.step)
        elif not reason:
            self._rejected_in_a_row = 0
            start_s = time.perf_counter()
            self.replica.commit(gradient, data_points)
            self._report.applying_s += time.perf_counter() - start_s
            self.replica.checkpoint_when_due()
            self._report.commits += 1
        self._report.maybe()
        return Receipt(not reason, self.replica.step, reason)

    def close(self) -> None:
        """Of a process that ends otherwise than asked (its environment failed, its loop is over) no step is lost.

        Raises:
            LastStepsLost: what could not be written then; not where another exception is on its way or being handled.
        """
        self._report.maybe(last=True)
        if self._lost is not None:
            self.replica.close()
            return
        self._lost = self.replica.finish()
        self.replica.close()
        if self._lost and sys.exc_info()[1] is None:
            raise LastStepsLost(self._lost)


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Ctrl-C comes after the body: where it ends an update between two parts, the parameters are of no version."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[Any] = []
    signal.signal(signal.SIGINT, lambda *signal_and_frame: pressed.append(signal_and_frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(*pressed[0])


def how_it_ended(reason: str, lost: str) -> RunStopped | LastStepsLost:
    """What a run ends with that was asked to, and whose `Replica.finish` said what is lost."""
    return LastStepsLost(f"{reason}; {lost}") if lost else RunStopped(reason)


def refusal(gradient: Tensor, step: int, replica: Replica) -> str:
    """Why a gradient may not enter the replica's next update, "" if it may."""
    if step != replica.step:
        return "stale"
    if gradient.shape != (replica.layout.numel,):
        return "wrong-length"
    return "" if is_usable(gradient) else "non-finite"
