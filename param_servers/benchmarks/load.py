"""How busy this machine is, and who makes it so: differences of what Linux counts in /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING_FOR_DISKS, _STOLEN, _ALL_BUT_GUESTS = 3, 4, 7, 8
"""Columns of /proc/stat: user nice system idle iowait irq softirq steal; guests' time is part of user and nice."""
_FLAGS, _TIMES, _OF_THE_KERNEL = 6, slice(11, 15), 0x00200000
"""Of /proc/PID/stat behind the name: flags, and utime stime cutime cstime; PF_KTHREAD."""


class Load(NamedTuple):
    """What happened between two snapshots."""

    elapsed_s: float
    busy_share: float
    """Of all processors, by all that ran: also by what is not of the measurement, and by the host's other guests."""
    own_share: float
    """Of all processors, by the processes that were watched. Work of the kernel that belongs to nobody is not in it."""
    others_share: float
    """Of all processors, by other processes and the host's other guests. The kernel's own work, such as passing packets
    on between hosts that are emulated, is in neither."""
    cpu_s: list[float]
    """Of each process that was watched."""


class Snapshot(NamedTuple):
    """Counters at one moment."""

    at_s: float
    busy_ticks: int
    all_ticks: int
    stolen_ticks: int
    process_ticks: dict[int, int]
    """Of all that are no thread of the kernel, with what ended children of theirs had."""
    watched_ticks: list[int]

    @classmethod
    def now(cls, pids: Iterable[int]) -> Snapshot:
        """The machine, and these processes; 0 for one that is no more."""
        with open("/proc/stat", encoding="ascii") as file:
            busy, ticks, stolen = machine_ticks(file.readline())
        watched = {pid: _ticks_of(pid) for pid in pids}
        others = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        of_others = {pid: sum(_ticks_of(pid)) for pid in others if pid not in watched}
        own = [of_itself for of_itself, _ in watched.values()]
        return cls(time.perf_counter(), busy, ticks, stolen, of_others, own)

    def __sub__(self, before: Snapshot) -> Load:
        spent = [max(0, now - then) for now, then in zip(self.watched_ticks, before.watched_ticks, strict=True)]
        others = (max(0, now - before.process_ticks.get(pid, 0)) for pid, now in self.process_ticks.items())
        ticks = max(1, self.all_ticks - before.all_ticks)
        return Load(
            elapsed_s=self.at_s - before.at_s,
            busy_share=(self.busy_ticks - before.busy_ticks) / ticks,
            own_share=sum(spent) / ticks,
            others_share=(sum(others) + self.stolen_ticks - before.stolen_ticks) / ticks,
            cpu_s=[each / _TICKS_PER_S for each in spent],
        )


def machine_ticks(line: str) -> tuple[int, int, int]:
    """(busy, all, by other guests of the host) of the first line of /proc/stat."""
    ticks = [int(word) for word in line.split()[1 : 1 + _ALL_BUT_GUESTS]]
    return sum(ticks) - ticks[_IDLE] - ticks[_WAITING_FOR_DISKS], sum(ticks), ticks[_STOLEN]


def _ticks_of(pid: int) -> tuple[int, int]:
    """(its own, of children that have ended); none of a thread of the kernel."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    words = stat.rpartition(")")[2].split()
    if int(words[_FLAGS]) & _OF_THE_KERNEL:
        return 0, 0
    user, system, childrens_user, childrens_system = map(int, words[_TIMES])
    return user + system, childrens_user + childrens_system
