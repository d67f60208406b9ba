"""Follows the metrics files of a run: each call gives the lines that are new, in the order of their times.

Files are opened anew at each look (NFS then asks its server again), read from where the last look ended, and a line is
taken only once its newline is there. Lines that are not records (torn by a crash, garbage, a field of the wrong type)
are skipped and counted, so what reads records need not check them again.
"""

import heapq
import json
import math
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics import registry as metric_registry
from dba3c.runs.folder import CLOCKS_S, RunFolder

Record = dict[str, Any]
_CHUNK_BYTES = 1 << 20
_METRICS: dict[str, frozenset[str]] = {
    **{kind: frozenset(metric_registry.of_kind(kind)) for kind in ("step", "server", "episode", "evaluation")},
    "event": frozenset(),
}
_BOOKKEEPING = ("count", "window_s", "cpu_s", "incarnation")
_SUMS = ("sections_s", "not_finite", "given")
_BEYOND_ANY_NUMBER = 1e300  # such an integer has no float, and such a float is no measurement


class RunReader:
    """Reads the metrics files of one run, all of them, incrementally; `warn` is told once of each trouble."""

    def __init__(self, run: RunFolder, warn: Callable[[str], None] = lambda line: None) -> None:
        self.run = run
        self._warn = warn
        self._told: set[str] = set()
        self.bad_lines: dict[str, int] = {}  # file name -> lines that were not records
        self.unreadable: dict[str, str] = {}  # file name -> why
        self.unfinished: set[str] = set()  # files that end within a line: being written, or torn
        self._offsets: dict[Path, int] = {}

    def poll(self, last: bool = False) -> Iterator[Record]:
        """The records that are new since the last poll, merged by `time_s`; use the iterator up.

        Memory does not grow with the length of a run: at most one chunk per file is held.

        Args:
            last: nobody will poll again: a line without its end is torn, unless the run is still live.

        Raises:
            UserError: at the `last` poll, some of it could not be read; what was given is less than the run.
        """
        try:
            files = sorted(path for path in self.run.metrics.iterdir() if path.suffix == ".jsonl")
            yield from heapq.merge(*(self._new_records(path) for path in files), key=itemgetter("time_s"))
            self.unreadable.pop(self.run.metrics.name, None)
        except FileNotFoundError:
            pass  # nobody has begun any
        except OSError as error:  # a shared file system that is away: the next poll tries again
            self.unreadable[self.run.metrics.name] = error.strerror or str(error)
        if last and self.unfinished and self.run.status() != "live":
            for name in self.unfinished:
                self.bad_lines[name] = self.bad_lines.get(name, 0) + 1
        complaints = {name: f"{name} cannot be read ({why})" for name, why in self.unreadable.items()}
        if last and complaints:
            raise UserError(f"{self.run.path}: {'; '.join(complaints.values())}")
        for name, count in self.bad_lines.items():
            complaints[f"bad {name}"] = f"{name} has lines that are not records ({count}); they are skipped"
        for about, complaint in complaints.items():
            if about not in self._told:
                self._told.add(about)
                self._warn(complaint)

    def _new_records(self, path: Path) -> Iterator[Record]:
        latest_s, set_back_s = -math.inf, 0.0
        for line in self._new_lines(path):
            record = _parsed(line)
            if record is not None:
                # Where a clock was set back the records after it keep their distances, and the merge its order; one
                # that is a little behind its predecessor's, of another host perhaps, gets the time of that.
                if record["time_s"] + set_back_s < latest_s - CLOCKS_S:
                    set_back_s = latest_s - record["time_s"]
                latest_s = record["time_s"] = max(latest_s, record["time_s"] + set_back_s)
                record["file"] = path.stem  # of a worker's lanes each has one
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
            (self.unfinished.add if end < len(chunk) else self.unfinished.discard)(path.name)
            for line in chunk[:end].splitlines(keepends=True):
                self._offsets[path] = offset = offset + len(line)
                yield line
            if len(chunk) < _CHUNK_BYTES:
                return
            if not end:  # a "line" longer than any record: garbage, stepped over
                self._offsets[path] = offset + len(chunk)
                yield chunk


def whole_run(run: RunFolder, warn: Callable[[str], None] = warn_on_stderr) -> Iterator[Record]:
    """All records of a run, by time; lines that are none go to `warn` after the last one, a line for each file.

    Raises UserError, after what could be read, where that is not all of it.
    """
    yield from RunReader(run, lambda line: warn(f"{run.path}: {line}")).poll(last=True)


def _parsed(line: bytes) -> Record | None:
    """The record on a line, None when it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError; brackets without end recurse
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str) or record["kind"] not in _METRICS:
        return None
    whole = all(isinstance(record.get(name), int) for name in ("step", "rank")) and isinstance(record.get("role"), str)
    return record if whole and _is_number(record.get("time_s")) and _well_typed(record) else None


def _well_typed(record: Record) -> bool:
    """Whether every field that this version knows is what the writer would have written; others may be anything."""
    metrics = _METRICS[record["kind"]]
    for name, value in record.items():
        if name in metrics:
            if not _or_null(value):
                return False
        elif name in _BOOKKEEPING:
            if not _is_number(value):
                return False
        elif name in _SUMS:
            if not (isinstance(value, dict) and all(map(_is_number, value.values()))):
                return False
        elif name == "interval_95" and not (isinstance(value, list) and len(value) == 2 and all(map(_or_null, value))):
            return False
    return True


def _or_null(value: object) -> bool:
    """Whether it is a number, or null: it was not finite, or there was none."""
    return value is None or _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _BEYOND_ANY_NUMBER
