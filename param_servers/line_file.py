"""Appends JSON lines to a file, whatever the disk does and however the last writer died; the one way to append here.

A file of lines is whole up to its last newline. What is behind that was torn by a crash or a full disk: whoever opens
the file to append cuts it off, whoever reads passes it over.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

BACKLOG_LINES = 2000  # kept in memory while the disk refuses, so that a short fault loses nothing
_BLOCK_BYTES = 1 << 16


class LineFile:
    """One process's append-only file of JSON lines.

    After each `write` the file ends in a newline, also where the disk took only a part. What the disk refuses waits in
    a bounded backlog; what falls out of it is counted in `lost`. Nothing here raises OSError: a full disk costs lines,
    not the process that writes them.

    Args:
        warn: called with one line when the disk refuses for the first time, and by `close` when lines were lost.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0
        self._warn = warn
        self._warned = False
        self._backlog: deque[bytes] = deque()
        self._descriptor: int | None = None

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append the records, after those that are still waiting."""
        self._backlog.extend(json.dumps(record, allow_nan=False).encode() + b"\n" for record in records)
        try:
            if self._backlog:
                self._drain()
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(f"cannot write {self.path}: {error.strerror}; training goes on, records wait in memory")
            self._let_go()  # opened anew next time: a stale descriptor of NFS would refuse for ever
        while len(self._backlog) > BACKLOG_LINES:
            self._backlog.popleft()
            self.lost += 1

    def _drain(self) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
        text, done = b"".join(self._backlog), 0
        try:
            while done < len(text):  # a disk that is nearly full takes a part, and only then says why
                done += os.write(self._descriptor, text[done:])
        finally:
            for _ in range(text.count(b"\n", 0, done)):
                self._backlog.popleft()
            if done < len(text):
                cut_torn_tail(self._descriptor)

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            cut_torn_tail(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        try:
            if descriptor is not None:
                os.close(descriptor)
        except OSError as error:  # NFS tells here what it could not keep
            self._warn(f"{self.path}: {error.strerror} when it was closed; its last records may be missing")

    def close(self) -> None:
        """Try once more to write what waits; what cannot be written is counted as lost."""
        self.write([])
        self.lost += len(self._backlog)
        self._backlog.clear()
        if self.lost:
            self._warn(f"{self.path}: {self.lost} records could not be written")
        self._let_go()


def cut_torn_tail(descriptor: int) -> None:
    """Let a file end with its last newline. Works on a full disk. Raises OSError."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without their newlines; a torn last one is left out. Raises OSError."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]
