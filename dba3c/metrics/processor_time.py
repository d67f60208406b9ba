"""Processor time of a process and of the programs that it has started.

An environment may be a process of its own (`environment_processes`, ViZDoom's engine), which `time.process_time` does
not know. A worker's lanes are not such programs: each has a writer, and so a time, of its own.
"""

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessorTime:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._spent_s = _spent_s()

    def take(self) -> float:
        """Seconds since the last `take`. What a program used between that and its end is lost with it."""
        before_s, self._spent_s = self._spent_s, _spent_s()
        return sum(max(0.0, spent_s - before_s.get(pid, 0.0)) for pid, spent_s in self._spent_s.items())


def _spent_s() -> dict[str, float]:
    """By process: this one (0), and of its living descendants those that are no lanes."""
    spent_s = {"0": time.process_time()}
    lanes = {str(child.pid) for child in multiprocessing.active_children() if child.name.startswith("lane-")}
    pids = [pid for pid in _children("self") if pid not in lanes]
    while pids:
        pid = pids.pop()
        try:
            fields = (_PROC / pid / "stat").read_text(errors="replace").rpartition(")")[2].split()
            spent_s[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime and stime: 14 and 15 of proc(5)
            pids += _children(pid)
        except OSError:  # it ended meanwhile
            continue
    return spent_s


def _children(pid: str) -> list[str]:
    children: list[str] = []
    for task in (_PROC / pid / "task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            children += task.read_text().split()
    return children
