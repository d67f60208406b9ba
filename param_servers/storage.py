"""One shard's way to the checkpoints: writes go on in a thread, so that a slow disk does not stop the steps."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from param_servers.bounded import LeavableThread
from param_servers.errors import ParamServersError, SnapshotError
from param_servers.sharding import ShardPlan
from param_servers.snapshots import discard_after, find_newest, load_checkpoint, publish, read_manifest, write_shard
from param_servers.update_rules import State

_DISCARD_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 10.0
"""For what is still being written: whoever needs it has waited for it before."""


class Storage(Protocol):
    """What a shard needs to write and to find its slice again."""

    def write(self, step: int, term: int, parameters: Tensor, state: State, done: Callable[[bytes], None]) -> None:
        """Write a slice [n] that nobody changes any more; `done(JSON)` is called later, with `file` or `error`."""
        ...

    def load(self, step: int) -> tuple[Tensor, State | None]:
        """The slice [n] of version `step`; version 0 without a checkpoint is the initial one."""
        ...


class Checkpoints:
    """Storage in a directory that all servers share.

    Args:
        directory: None: nothing is written, and only the initial parameters can be loaded.
        initial: [P] float32, parameters of step 0, in the order of `plan`.
    """

    def __init__(self, directory: Path | None, plan: ShardPlan, shard: int, initial: Tensor) -> None:
        self.directory, self._plan, self._shard = directory, plan, shard
        self._initial = initial[plan.slice_of(shard)].clone()
        self._thread = LeavableThread(f"checkpoints-{shard}")
        self._pending: list[tuple[Future[dict[str, Any]], Callable[[bytes], None]]] = []
        self._stuck = False

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def write(self, step: int, term: int, parameters: Tensor, state: State, done: Callable[[bytes], None]) -> None:
        directory, shard, count = self.directory, self._shard, self._plan.num_shards
        if directory is None:
            done(b'{"error": "no directory for checkpoints"}')
            return
        self.submit(lambda: write_shard(directory, step, term, shard, count, parameters, state), done)

    def publish(
        self, step: int, term: int, data_points: int, files: list[dict[str, Any]], extra: dict[str, Any], keep: int,
        done: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        """Shard 0: all slices are there; see `snapshots.publish`."""
        directory, plan = self.directory, self._plan
        assert directory is not None

        def work() -> dict[str, Any]:
            path = publish(
                directory, step, data_points=data_points, term=term, plan=plan, files=files, extra=extra, keep=keep
            )
            return {"file": path.name}

        self.submit(work, done)

    def submit(self, work: Callable[[], dict[str, Any]], done: Callable[[bytes], None]) -> None:
        self._pending.append((self._thread.submit(work), done))

    def poll(self) -> None:
        """Call `done` of what is finished; from the loop, so that nothing else needs a lock."""
        finished = [entry for entry in self._pending if entry[0].done()]
        self._pending = [entry for entry in self._pending if not entry[0].done()]
        for future, done in finished:
            try:
                result = future.result()
            except (OSError, ParamServersError, ValueError) as error:
                result = {"error": str(error)}
            done(json.dumps(result).encode())

    def discard_after(self, step: int) -> None:
        """Shard 0, before a roll-back to `step`: later checkpoints belong to a history that did not happen.

        Waits for what is being written (at most _DISCARD_TIMEOUT_S), since that could be one of them.

        Raises:
            SnapshotError: the disk did not do it, or not in time; a restart would find the wrong history there.
        """
        directory = self.directory
        if directory is None:
            return
        try:
            self._thread.submit(lambda: discard_after(directory, step)).result(_DISCARD_TIMEOUT_S)
        except FutureTimeoutError as error:
            what = f"the disk did not delete the checkpoints after step {step} within {_DISCARD_TIMEOUT_S:g} s"
            self._stuck = True  # nobody waits for that disk again
            raise SnapshotError(f"{what}: {directory}") from error
        except OSError as error:
            raise SnapshotError(f"the checkpoints after step {step} cannot be deleted: {error}") from error
        self.poll()

    def newest(self, on_skip: Callable[[str], None]) -> tuple[int, int, int]:
        """(step, data_points, term) of the newest valid checkpoint; zeros without one."""
        path = find_newest(self.directory, on_skip) if self.directory is not None else None
        if path is None:
            return 0, 0, 0
        manifest = read_manifest(path)
        return int(manifest["step"]), int(manifest["data_points"]), int(manifest["term"])

    def load(self, step: int) -> tuple[Tensor, State | None]:
        path = self.directory / f"step-{step}" if self.directory is not None else None
        if path is None or not path.is_dir():
            if step == 0:
                return self._initial, None
            raise SnapshotError(f"server {self._shard} cannot find checkpoint step-{step} in {self.directory}")
        return load_checkpoint(path).slice_for(self._plan, self._shard)

    def close(self) -> None:
        """Let go of the thread, within a bounded time."""
        self._thread.close(0.0 if self._stuck else _CLOSE_TIMEOUT_S)
