"""How busy this machine is, and who makes it so: differences of what Linux counts in /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING_FOR_DISKS, _ALL_BUT_GUESTS = 3, 4, 8
"""Columns of /proc/stat: user nice system idle iowait irq softirq steal; guests' time is part of user and nice."""


class Load(NamedTuple):
    """What happened between two snapshots."""

    elapsed_s: float
    busy_share: float
    """Of all processors, by all that ran: also by what is not of the measurement, and by the host's other guests."""
    own_share: float
    """Of all processors, by the processes that were watched. Work of the kernel that belongs to nobody is not in it."""
    cpu_s: list[float]
    """Of each process that was watched."""


class Snapshot(NamedTuple):
    """Counters at one moment."""

    at_s: float
    busy_ticks: int
    all_ticks: int
    process_ticks: list[int]

    @classmethod
    def now(cls, pids: Iterable[int]) -> Snapshot:
        """The machine, and these processes; 0 for one that is no more."""
        with open("/proc/stat", encoding="ascii") as file:
            busy, ticks = machine_ticks(file.readline())
        return cls(time.perf_counter(), busy, ticks, [_ticks_of(pid) for pid in pids])

    def __sub__(self, before: Snapshot) -> Load:
        spent = [max(0, now - then) for now, then in zip(self.process_ticks, before.process_ticks, strict=True)]
        ticks = max(1, self.all_ticks - before.all_ticks)
        return Load(
            elapsed_s=self.at_s - before.at_s,
            busy_share=(self.busy_ticks - before.busy_ticks) / ticks,
            own_share=sum(spent) / ticks,
            cpu_s=[each / _TICKS_PER_S for each in spent],
        )


def machine_ticks(line: str) -> tuple[int, int]:
    """(busy, all) of the first line of /proc/stat."""
    ticks = [int(word) for word in line.split()[1 : 1 + _ALL_BUT_GUESTS]]
    return sum(ticks) - ticks[_IDLE] - ticks[_WAITING_FOR_DISKS], sum(ticks)


def _ticks_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
