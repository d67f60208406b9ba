"""Appends JSON lines to a file, whatever the disk does and however the last writer died."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

BACKLOG_LINES = 2000  # kept in memory while the disk refuses, so that a short fault loses nothing


def warn_on_stderr(message: str) -> None:
    print(f"dba3c: warning: {message}", file=sys.stderr, flush=True)


def prefixed(prefix: str, warn: Callable[[str], None]) -> Callable[[str], None]:
    """`warn` for lines about one thing, which is named before each of them."""
    return lambda line: warn(f"{prefix}: {line}")


class LineFile:
    """One process's append-only file of JSON lines.

    A line is on disk whole, or it is a torn one that the next line does not touch: after a short write, and after
    another life's crash, writing goes on at a fresh line. What the disk refuses waits in a bounded backlog; what falls
    out of it is counted in `lost`.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.lost = 0
        self._warn = warn or warn_on_stderr
        self._warned = False
        self._backlog: deque[bytes] = deque()
        self._descriptor: int | None = None
        self._torn = False  # the file ends in a part of a line

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends the records, after those that are still waiting; never raises OSError."""
        self._backlog.extend(json.dumps(record, allow_nan=False).encode() + b"\n" for record in records)
        try:
            self._drain()
        except OSError as error:
            self._complain(error)
        while len(self._backlog) > BACKLOG_LINES:
            self._backlog.popleft()
            self.lost += 1

    def _drain(self) -> None:
        while self._backlog:
            if self._descriptor is None:
                self._descriptor = self._open()
            text = (b"\n" if self._torn else b"") + b"".join(self._backlog)
            written = os.write(self._descriptor, text)
            self._forget(text[:written])

    def _forget(self, written: bytes) -> None:
        """Takes whole lines that are on disk out of the backlog; a part of a line stays, to be written anew."""
        whole = written.count(b"\n") - (1 if self._torn and written else 0)
        for _ in range(whole):
            self._backlog.popleft()
        self._torn = not written.endswith(b"\n") if written else self._torn

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(descriptor).st_size
        self._torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        return descriptor

    def _complain(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"cannot write {self.path}: {error.strerror}; training goes on, records wait in memory")

    def close(self) -> None:
        """Tries once more to write what waits; what cannot be written is counted as lost."""
        self.write([])
        if self._backlog:
            self.lost += len(self._backlog)
            self._backlog.clear()
        if self.lost:
            self._warn(f"{self.path}: {self.lost} records could not be written")
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
