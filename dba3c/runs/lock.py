"""One launch at a time may write to a run folder, whatever host it runs on.

The lock is the file `lock.json` {host, pid, ...}. Its holder touches it every few seconds. Whoever finds it decides:

1. the holder's process can be seen from here (same kernel boot, same pid namespace): it is alive or it is not;
2. it cannot be seen (another host or container of a shared file system), or it lives and this seems to be a copy of its
   folder (another inode, which some file systems change): it is alive while the heartbeat is fresh.
   Heartbeats are compared on the file system's own clock, where one can be asked (some have their clients' times), so
   hosts need not agree on the time. One that seems old but is seen to change is fresh all the same, so whoever acts
   on a stale one looks more than once.

A dead holder's lock is taken over. Two launches that take over at once are put in order by flock where the file system
has it; where it has none, the one whose token is in the file afterwards has won.

A holder may be wrongly called dead by 2: it was frozen, or could not reach the file system. So

3. every process of a launch, but for a worker's other lanes, which end with its first, looks at the file every
   HEARTBEAT_S. Only another launch's name in it, or, where it is gone, in the newest life of meta.json, makes it lose
   the folder: it then ends at once and writes nothing more. (A chief that its launcher has started again is the same
   launch to all but its predecessor.) Reads and refreshes that fail change nothing, and a file that somebody has
   deleted is put back; but where config.json has been gone, too, for HEARTBEAT_LOST_S, the run was deleted, and nobody
   could go on with what it still learns;
4. a refresh that fails for less than HEARTBEAT_LOST_S lets nobody in. After that a launch on another host may take the
   folder; it first waits for two heartbeats, and is refused when one comes. Whoever lives learns of it by 3.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dba3c.errors import UserError, writing
from dba3c.runs import host_facts
from dba3c.runs.files import is_there, write_atomically, write_once

LOCK_NAME = "lock.json"
HEARTBEAT_S = 5.0
HEARTBEAT_LOST_S = 60.0  # NFS may show a modification time up to 60 s old (acregmax)
_GUARD_WAIT_S = 10.0
_CLOCK_VALID_S = 300.0
_clock_ahead_s: dict[Path, tuple[float, float]] = {}  # when it was measured (monotonic), and what it was
_beats_s: dict[Path, tuple[float, float, float]] = {}
"""The newest that was seen, when that was last looked at, and when one was seen to come (the two latter monotonic)."""


@dataclass(frozen=True)
class Holder:
    """The process that holds, or held, a run folder."""

    host: str
    pid: int
    process_started: str  # tells a process from a later one that was given the same pid
    pid_space: str  # kernel boot and pid namespace: only inside it does `pid` mean anything
    token: str
    launch_id: str = ""  # where a launcher may start the process again, and the launch stays the same
    inode: int = 0  # of the folder, for who is on the same host; 0: not noted

    @classmethod
    def this_process(cls, launch_id: str = "", inode: int = 0) -> Holder:
        started, token = process_started(os.getpid()), secrets.token_hex(8)
        return cls(socket.gethostname(), os.getpid(), started, host_facts.namespace("pid"), token, launch_id, inode)


NOBODY = Holder(host="", pid=0, process_started="", pid_space="", token="nobody")
"""Whom a run was lost to that was deleted."""


def process_started(pid: int) -> str:
    """Start time of a process in kernel ticks since boot; "" when it is dead or the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a name that is cut
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]  # a zombie is dead, though its number is not free yet


def _filesystem_now_s(folder: Path) -> float:
    """The folder's file system's idea of now (unix seconds); this host's where the folder could never be written.

    The difference of the two clocks is measured (with a short-lived file) once in a while, not at each call. What a
    full disk keeps from being measured is what it was before.
    """
    measured_s, ahead_s = _clock_ahead_s.get(folder, (-math.inf, 0.0))
    if time.monotonic() - measured_s > _CLOCK_VALID_S:
        probe = folder / f".now-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            probe.touch(exist_ok=False)
            ahead_s = probe.stat().st_mtime - time.time()
            _clock_ahead_s[folder] = (time.monotonic(), ahead_s)
            probe.unlink()
    return time.time() + ahead_s


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError):  # torn or foreign: nobody can be named, the heartbeat decides
        return Holder(host="an unknown host", pid=0, process_started="", pid_space="", token="")


def heartbeat(folder: Path) -> tuple[Holder, float] | None:
    """What another heartbeat, or another holder, changes; None where nobody holds the folder.

    The file is opened first, at which NFS asks its server how old it is.
    """
    path = folder / LOCK_NAME
    holder = _read(path)
    try:
        return None if holder is None else (holder, path.stat().st_mtime)
    except FileNotFoundError:
        return None


def _inode(folder: Path) -> int:
    """0 where it is gone."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return 0


def living_holder(folder: Path) -> Holder | None:
    """The process that holds `folder` now, or None when nobody does or its holder is dead."""
    path = folder / LOCK_NAME
    holder = _read(path)
    if holder is None:
        return None
    if holder.pid_space == host_facts.namespace("pid"):
        hidden = False
        try:
            os.kill(holder.pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:  # it is someone else's, and it runs
            hidden = not process_started(holder.pid)  # /proc mounted with hidepid: its heartbeat tells
        if not hidden and process_started(holder.pid) != holder.process_started:
            return None
        if not hidden and holder.inode in (0, _inode(folder)):
            return holder
    try:
        beat_s = path.stat().st_mtime
    except FileNotFoundError:
        return None
    now_s = time.monotonic()
    last_s, looked_s, came_s = _beats_s.get(folder, (math.inf, -math.inf, -math.inf))
    if beat_s > last_s and now_s - looked_s < HEARTBEAT_LOST_S:  # else it may have come long ago
        came_s = now_s
    _beats_s[folder] = beat_s, now_s, came_s
    silent_s = min(_filesystem_now_s(folder) - beat_s, now_s - came_s)
    return holder if silent_s < HEARTBEAT_LOST_S else None


def refuse_held(folder: Path) -> None:
    """Raises UserError that names the host and pid that has it, or what keeps it from being looked at."""
    with writing(folder / LOCK_NAME):
        other = living_holder(folder)
    if other is not None:
        raise _in_use(folder, other)


def _in_use(folder: Path, by: Holder) -> UserError:
    return UserError(
        f"{folder} is in use by process {by.pid} on {by.host}: stop that run first, or choose another folder"
    )


@contextlib.contextmanager
def _takeover_guard(folder: Path) -> Iterator[None]:
    """Puts simultaneous acquisitions in order. Does nothing on a file system without flock."""
    descriptor = os.open(folder / ".lock-guard", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline_s = time.monotonic() + _GUARD_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    break  # no flock here
                if time.monotonic() > deadline_s:
                    message = f"{folder}: another launch has been taking this folder for {_GUARD_WAIT_S:.0f} s"
                    raise UserError(message) from error
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


class RunLock:
    """The right of one launch to write to one run folder: taken by `acquire`, and followed by its other processes.

    Args:
        holder: the launch's process that has acquired it.
        keeps: this is that process, which refreshes the lock and gives it back.
    """

    def __init__(self, folder: Path, holder: Holder, keeps: bool) -> None:
        self.folder, self.holder = folder, holder
        self.lost_to: Holder | None = None
        """Who has taken over."""
        self._keeps = keeps
        self._on_lost: Callable[[Holder], None] = lambda successor: None
        self._gone_since_s = math.inf
        self._device: int | None = None
        """Of the folder with a run in it; None: none was seen there yet."""
        self._looking = threading.RLock()  # a signal handler may look, too
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, folder: Path, launch_id: str = "") -> RunLock:
        """Takes the folder. Raises UserError when somebody has it, or took it at the same moment."""
        path = folder / LOCK_NAME
        with writing(path):
            mine = Holder.this_process(launch_id, folder.stat().st_ino)
            refuse_held(folder)
            last = heartbeat(folder)
            if last is not None and last[0].pid_space != mine.pid_space:
                time.sleep(2 * HEARTBEAT_S)  # rule 4
            with _takeover_guard(folder):
                refuse_held(folder)
                now = heartbeat(folder)
                if now is not None and now != last:
                    raise _in_use(folder, now[0])
                write_atomically(path, json.dumps(asdict(mine)))
        winner = _read(path)
        if winner is None or winner.token != mine.token:
            raise UserError(f"{folder} was taken by another launch at the same moment")
        return cls(folder, mine, keeps=True)

    def when_lost(self, on_lost: Callable[[Holder], None]) -> None:
        """Call `on_lost` with the successor, from any thread, once this launch has lost the folder."""
        with self._looking:
            self._on_lost = on_lost
            if self.lost_to is not None:
                on_lost(self.lost_to)

    def look(self) -> Holder | None:
        """Who has taken over, None while nobody has, as far as can be seen now."""
        with self._looking:
            if self.lost_to is None and not self._released.is_set():
                found = _read(self.folder / LOCK_NAME) or _holder_of_newest_life(self.folder)
                if found is None or found.token in (self.holder.token, ""):
                    return None
                if found.launch_id and found.launch_id == self.holder.launch_id and not self._keeps:
                    self.holder = found
                else:
                    self.lost_to = found
                    self._on_lost(found)
            return self.lost_to

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            if self.look() is not None:
                return
            # a full or absent file system: the next beat tries again
            with contextlib.suppress(OSError, UserError):
                self.look_whether_deleted()
                if self._keeps and self.lost_to is None:
                    self._refresh()

    def look_whether_deleted(self) -> None:
        """A run that was there, in a folder that is; where that is missing, or another's mount point, the file system
        may be away."""
        if is_there(self.folder / "config.json"):
            self._device, self._gone_since_s = self.folder.stat().st_dev, math.inf
            return
        is_away = self.folder.is_dir() and self.folder.stat().st_dev != self._device
        if self._device is None or is_away or not is_there(self.folder.parent):
            self._gone_since_s = math.inf
            return
        self._gone_since_s = min(self._gone_since_s, time.monotonic())
        if time.monotonic() - self._gone_since_s > HEARTBEAT_LOST_S:
            with self._looking:
                self.lost_to = NOBODY
                self._on_lost(NOBODY)

    def _refresh(self) -> None:
        path = self.folder / LOCK_NAME
        try:
            os.utime(path)
        except FileNotFoundError:
            if not self._released.is_set():
                write_once(path, json.dumps(asdict(self.holder)))  # unless another launch was faster

    def release(self) -> None:
        """Gives the folder back; harmless when done twice or after the lock was lost."""
        self._released.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=HEARTBEAT_S)
        holder = _read(self.folder / LOCK_NAME) if self._keeps else None
        if holder is not None and holder.token == self.holder.token:
            with contextlib.suppress(OSError):  # a disk that refuses: the lock of a dead process holds nobody up
                (self.folder / LOCK_NAME).unlink()


def _holder_of_newest_life(folder: Path) -> Holder | None:
    """Who held the folder in the newest life that meta.json knows; None when that cannot be said."""
    try:
        return Holder(**json.loads((folder / "meta.json").read_text())["lives"][-1]["lock"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def taken_over(folder: Path, successor: Holder) -> str:
    """The line of a launch that has lost its folder."""
    if successor is NOBODY:
        return f"{folder} was deleted: this launch has ended, and what it had learned is lost"
    who = f"process {successor.pid} on {successor.host}"
    return f"{folder} was taken over by {who}: this launch has ended at once and writes nothing more"
