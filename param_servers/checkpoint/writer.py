"""Who writes a checkpoint when, and one shard's way to them.

The disk works in a thread, so that a slow one stops neither steps nor links.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.checkpoint.files import (
    find_newest,
    is_there,
    load_checkpoint,
    patiently,
    publish,
    read_manifest,
    set_aside_after,
    sweep_unfinished,
    write_shard,
)
from param_servers.errors import CheckpointError, CheckpointUnreadable, ParamServersError
from param_servers.layout import ShardPlan
from param_servers.optim import State
from param_servers.timeouts import CLOSE_S, LeavableThread

Done = Callable[[dict[str, Any]], None]
"""Called with the result of work that is done, or with {"error": why it failed}."""
Loaded = Callable[[Tensor, State | None], None]


class CheckpointFiles:
    """One shard's checkpoints, in a directory that all servers share.

    Args:
        directory: None: nothing is written, and only the initial parameters can be loaded.
        initial: [P] float32, parameters of step 0, in the order of `plan`: a copy is kept. None: of who never goes back
            to them.
    """

    def __init__(
        self, directory: str | Path | None, plan: ShardPlan, shard: int, initial: Tensor | None = None
    ) -> None:
        self.directory = None if directory is None else Path(directory).absolute()
        self._plan, self._shard = plan, shard
        self._initial = None if initial is None else initial[plan.slice_of(shard)].clone()
        self._thread = LeavableThread(f"checkpoints-{shard}")
        self._pending: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []
        """What the thread was given, and what to call from `poll` when it is done; that may raise what ends the run."""

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def make_room(self, step: int, term: int) -> None:
        """Shard 0, before any shard writes its slice of `step`: failed checkpoints, and those of writers that died, go.

        Not before the last one of a rank that goes on without the others: another may be writing that one, too.
        """
        directory = self.directory
        if directory is None:
            return

        def sweep() -> None:
            with contextlib.suppress(OSError):  # what the disk refuses is said by the write that follows
                sweep_unfinished(directory, step, term)

        self._begin(sweep, Future.result)

    def write(self, step: int, term: int, parameters: Tensor, state: State, done: Done) -> None:
        """Write a slice [n] that nobody changes any more; `done` is called with its entry for the manifest."""
        directory, shard, count = self.directory, self._shard, self._plan.num_shards
        if directory is None:  # this server was given none, shard 0 was
            done({"error": "no directory for checkpoints"})
            return
        self.submit(lambda: write_shard(directory, step, term, shard, count, parameters, state), done)

    def publish(
        self, step: int, term: int, data_points: int, files: list[dict[str, Any]], keep: int,
        done: Done,
    ) -> None:  # fmt: skip
        """Shard 0: all slices are there; see `files.publish`."""
        directory, plan = self.directory, self._plan
        assert directory is not None

        def work() -> dict[str, Any]:
            path = publish(directory, step, data_points=data_points, term=term, plan=plan, files=files, keep=keep)
            return {"file": path.name}

        self.submit(work, done)

    def submit(self, work: Callable[[], dict[str, Any]], done: Done) -> None:
        def told(future: Future[dict[str, Any]]) -> None:
            try:
                result = future.result()
            except (OSError, ParamServersError, ValueError) as error:
                result = {"error": str(error)}
            done(result)

        self._begin(work, told)

    def _begin(self, work: Callable[[], Any], told: Callable[[Future[Any]], None]) -> None:
        self._pending.append((self._thread.submit(work), told))

    def poll(self) -> None:
        """Call `done` of what is finished; from the loop, so that nothing else needs a lock.

        Raises:
            CheckpointError: what is to be loaded cannot be, or checkpoints cannot be set aside.
            CheckpointUnreadable: the file system does not let the one be read that is to be loaded.
        """
        # Asked once: what is done between two questions would be told twice, or never.
        finished = [each for each in self._pending if each[0].done()]
        self._pending = [each for each in self._pending if each not in finished]
        for future, told in finished:
            told(future)

    def set_aside_after(self, step: int, done: Callable[[], None]) -> None:
        """Shard 0, before a roll-back to `step`: later checkpoints belong to a history that did not happen.

        After what is being written, since that could be one of them. Where the disk cannot in some seconds, `poll`
        raises: a restart would find the wrong history there.
        """
        directory = self.directory
        if directory is None:
            done()
            return

        def told(future: Future[None]) -> None:
            try:
                future.result()
            except CheckpointUnreadable as error:
                why = f"the checkpoints after step {step} cannot be set aside: {error.__cause__}"
                raise CheckpointError(why) from error
            done()

        self._begin(lambda: patiently(lambda: set_aside_after(directory, step), directory), told)

    def newest(self, on_skip: Callable[[str], None]) -> tuple[int, int, int]:
        """(step, data_points, term) of the newest valid checkpoint; zeros without one. Raises as `find_newest`."""
        path = find_newest(self.directory, on_skip) if self.directory is not None else None
        if path is None:
            return 0, 0, 0
        manifest = read_manifest(path)
        return int(manifest["step"]), int(manifest["data_points"]), int(manifest["term"])

    def load(self, step: int, done: Loaded) -> None:
        """The slice [n] of version `step`, for `done` later; version 0 without a checkpoint is the initial one.

        `poll` raises what goes wrong.
        """
        if self.directory is None:  # no disk to wait for
            done(*self._load(step))
        else:
            self._begin(lambda: self._load(step), lambda future: done(*future.result()))

    def _load(self, step: int) -> tuple[Tensor, State | None]:
        path = self.directory / f"step-{step}" if self.directory is not None else None
        if path is None or not patiently(lambda: is_there(path), path):
            if step == 0 and self._initial is not None:
                return self._initial, None
            raise CheckpointError(f"server {self._shard} cannot find checkpoint step-{step} in {self.directory}")
        return load_checkpoint(path).slice_for(self._plan, self._shard)

    def close(self) -> None:
        """Let go of the thread, within a bounded time."""
        self._thread.close(CLOSE_S)


class CheckpointProgress:
    """Which checkpoint is being written, which shards have written their slice, which one is safe. Pure.

    At most one checkpoint is in the making.

    Args:
        num_shards: slices in a checkpoint.
        every: steps between checkpoints; 0: only when asked.
        saved: (step, data_points) of the newest valid checkpoint.
    """

    def __init__(self, num_shards: int, every: int, saved: tuple[int, int]) -> None:
        self.saved = saved
        self.failure = ""
        """Why the last one that failed did."""
        self.step: int | None = None
        self.data_points = 0
        """These two are those of the checkpoint in the making."""
        self._num_shards, self._every = num_shards, every
        self._tried = saved[0]
        """The step of the newest one that was begun: a full disk is not tried again before the next one is due."""
        self._written: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether one is in the making."""
        return self.step is not None

    @property
    def missing(self) -> list[int]:
        """Shards that have not written theirs of the one in the making; shard 0 publishes it, too."""
        return sorted({*range(self._num_shards)} - self._written) or [0] if self.busy else []

    def due(self, step: int) -> bool:
        """Whether to write one of version `step`."""
        return bool(self._every) and not self.busy and step // self._every > self._tried // self._every

    def begin(self, step: int, data_points: int) -> None:
        """All shards are told to write version `step`."""
        self.step = self._tried = step
        self.data_points = data_points
        self._written.clear()

    def abandon(self) -> None:
        """A shard is gone, and its slice is not waited for; one that has all of its slices is published all the same.
        The run goes back to the newest one."""
        if not self.busy or len(self._written) < self._num_shards:
            self.step, self._tried = None, self.saved[0]

    def slice_written(self, shard: int, step: int) -> bool:
        """A shard has written its slice of `step`; True when it was the last one."""
        if step != self.step:
            return False
        self._written.add(shard)
        return len(self._written) == self._num_shards

    def done(self, step: int, error: str) -> bool:
        """It is published, or has failed; False when nobody waits for it any more."""
        if step != self.step:
            return False
        self.failure = error
        if not error:
            self.saved = (step, self.data_points)
        self.step = None
        return True


def steps_lost(saved: int, why: str) -> str:
    """What it costs that the last checkpoint was not written; `saved` is the step of the newest one that was."""
    return f"the last checkpoint could not be written ({why}): all steps since {saved} are lost"
