"""Follows the metrics files of a run: each call gives the lines that are new, in the order of their times.

Files are opened anew at each look (NFS then asks its server again), read from where the last look ended, and a line is
taken only once its newline is there. Lines that are not records (torn by a crash, garbage) are skipped and counted.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dba3c.run_folder import RunFolder

Record = dict[str, Any]
_CHUNK_BYTES = 1 << 20
_KINDS = frozenset(("step", "server", "episode", "evaluation", "event"))


class RunReader:
    """Reads the metrics files of one run, all of them, incrementally."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.bad_lines: dict[str, int] = {}  # file name -> lines that were not records
        self.unreadable: dict[str, str] = {}  # file name -> why
        self._offsets: dict[Path, int] = {}

    def poll(self) -> Iterator[Record]:
        """The records that are new since the last poll, merged by `time_s`; use the iterator up.

        Memory does not grow with the length of a run: at most one chunk per file is held.
        """
        try:
            files = sorted(self.run.metrics.glob("*.jsonl"))
        except OSError as error:  # a shared file system that is away: the next poll tries again
            self.unreadable[self.run.metrics.name] = error.strerror or str(error)
            return iter(())
        return heapq.merge(*(self._new_records(path) for path in files), key=_time_s)

    def _new_records(self, path: Path) -> Iterator[Record]:
        latest_s = -math.inf
        for line in self._new_lines(path):
            record = _parsed(line)
            if record is not None:
                # A clock set back must not hold up the merge; the record itself keeps its own time.
                latest_s = record["time_s"] = max(latest_s, record["time_s"])
                yield record
            elif line.strip():
                self.bad_lines[path.name] = self.bad_lines.get(path.name, 0) + 1

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        """Whole new lines of a file. One that seems shorter than it was is a stale attribute cache: nothing new."""
        while True:
            offset = self._offsets.get(path, 0)
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    chunk = file.read(_CHUNK_BYTES)
            except OSError as error:
                self.unreadable[path.name] = error.strerror or str(error)
                return
            self.unreadable.pop(path.name, None)
            end = chunk.rfind(b"\n") + 1
            for line in chunk[:end].splitlines(keepends=True):
                self._offsets[path] = offset = offset + len(line)
                yield line
            if len(chunk) < _CHUNK_BYTES:
                return
            if not end:  # a "line" longer than any record: garbage, stepped over
                self._offsets[path] = offset + len(chunk)
                yield chunk


def _time_s(record: Record) -> float:
    return float(record["time_s"])


def _parsed(line: bytes) -> Record | None:
    """The record on a line, None when it is none."""
    try:
        record = json.loads(line)
    except ValueError:  # also what UnicodeDecodeError is
        return None
    if not isinstance(record, dict) or record.get("kind") not in _KINDS:
        return None
    whole = all(isinstance(record.get(name), int) for name in ("step", "rank")) and isinstance(record.get("role"), str)
    timed = isinstance(record.get("time_s"), (int, float)) and math.isfinite(record["time_s"])
    return record if whole and timed else None
