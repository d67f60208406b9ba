"""A disk that a seeded random number generator drives, in place of files: writes take their time, and some fail. And
one of files that is soon full."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from param_servers.checkpoint import files


class SimDisk:
    """Checkpoints that all servers see; writes take their time, and some fail."""

    def __init__(self) -> None:
        self.finished: dict[int, tuple[int, int, dict[int, Any]]] = {}
        self.unfinished: dict[tuple[int, int], dict[str, tuple[int, Any]]] = {}
        """Of each (step, term): files by name, with the shard whose they are."""
        self.speed = 0.5
        """Chance that a look finds something finished."""
        self.files = 0
        """Written so far: no two have the same name, as no two have the same hash."""


class SimCheckpoints:
    """`writer.CheckpointFiles` on a SimDisk."""

    directory = "simulated"

    def __init__(self, disk: SimDisk, rng: random.Random, shard: int, initial: Tensor) -> None:
        self._disk, self._rng, self._shard, self._initial = disk, rng, shard, initial
        self._pending: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def make_room(self, step: int, term: int) -> None:
        def work() -> None:
            unfinished = self._disk.unfinished
            self._disk.unfinished = {key: unfinished[key] for key in unfinished if key == (step, term) or key[1] > term}

        self._pending.append((work, lambda _: None))

    def write(self, step: int, term: int, parameters: Tensor, state: Any, done: Callable[[Any], None]) -> None:
        def work() -> dict[str, str]:
            if self._rng.random() < 0.05:
                return {"error": "no space left on device"}
            self._disk.files += 1
            name = f"file {self._disk.files} of term {term}"
            self._disk.unfinished.setdefault((step, term), {})[name] = (self._shard, (parameters, state))
            return {"file": name, "bytes": 0, "sha256": ""}

        self._pending.append((work, done))

    def publish(
        self, step: int, term: int, data_points: int, files: Any, keep: int, done: Callable[[Any], None]
    ) -> None:
        def work() -> dict[str, str]:
            there = self._disk.unfinished[step, term]
            assert all(entry["file"] in there for entry in files), f"checkpoint {step} is published torn: {files}"
            self._disk.finished[step] = (data_points, term, dict(there[entry["file"]] for entry in files))
            return {}

        self._pending.append((work, done))

    def poll(self) -> None:
        if self._pending and self._rng.random() < self._disk.speed:
            work, done = self._pending.pop(0)
            done(work())

    def set_aside_after(self, step: int, done: Callable[[], None]) -> None:
        def work() -> None:
            self._disk.finished = {saved: entry for saved, entry in self._disk.finished.items() if saved <= step}

        self._pending.append((work, lambda _: done()))

    def newest(self, on_skip: Callable[[str], None]) -> tuple[int, int, int]:
        if not self._disk.finished:
            return 0, 0, 0
        step = max(self._disk.finished)
        data_points, term, _ = self._disk.finished[step]
        return step, data_points, term

    def load(self, step: int, done: Callable[[Tensor, Any], None]) -> None:
        def work() -> tuple[Tensor, Any]:
            if step == 0 and 0 not in self._disk.finished:
                return self._initial, None
            found: tuple[Tensor, Any] = self._disk.finished[step][2][self._shard]
            return found

        self._pending.append((work, lambda found: done(*found)))

    def close(self) -> None:
        pass


class SmallDisk:
    """The real one, with room for `room` bytes of slices in `directory`; of one that does not fit a part is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, room: int) -> None:
        self.directory, self.room = directory, room
        monkeypatch.setattr(files, "save_file", self._save)

    @property
    def used(self) -> int:
        return sum(path.stat().st_size for path in self.directory.rglob("*.safetensors"))

    def _save(self, tensors: dict[str, Tensor], path: Path) -> None:
        save_file(tensors, path)
        if self.used > self.room:
            os.truncate(path, path.stat().st_size // 2)
            raise SafetensorError("I/O error: No space left on device (os error 28)")
