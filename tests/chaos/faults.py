"""The faults that a campaign does to a run, one function each; what can be undone returns how.

A fault names its victim by role and rank, so that a seed's schedule does not depend on what the run does meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

import psutil

from param_servers.wire.handshake import Dialer, Hello, Role

Undo = Callable[[], None]
SERVERS, WORKERS, BACKUP = 2, 4, 1
ROLES = [*(("server", i) for i in range(SERVERS)), *(("worker", i) for i in range(WORKERS)), ("monitor", 0)]
MOST_HITS = 3
"""Of one process in one life, as its launcher starts it again five times: kills, and freezes, of which it may die."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    role: str
    rank: int
    hold_s: float
    """Until it is undone."""
    number: int
    """For what else has to be chosen."""

    def __str__(self) -> str:
        held = f" for {self.hold_s:.1f} s" if self.kind in UNDONE else ""
        return f"{self.kind} {self.role} {self.rank}{held}" if self.kind in AIMED else f"{self.kind}{held}"


AIMED, UNDONE = ("kill", "freeze", "reset"), ("freeze", "full disk", "read-only disk")
WEIGHTS = {
    "kill": 4, "freeze": 4, "reset": 4, "strangers": 1, "full disk": 2, "read-only disk": 1, "no terminal": 1
}  # fmt: skip


def draw(rng: random.Random, without: Container[str]) -> Fault:
    """The next one of a seed's schedule."""
    kind, (role, rank) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], rng.choice(ROLES)
    fault = Fault(kind, role, rank, rng.choice([0.5, 2.0, 4.0, 14.0]), rng.randrange(1 << 30))
    return draw(rng, without) if kind in without or (kind == "reset" and role == "monitor") else fault


class Victim:
    """A run under attack.

    Args:
        run: its folder.
        supervisor: the process that was started as `dba3c train` or `resume`.
        lose_terminal: takes away its terminal, or the reader of its pipe.
    """

    def __init__(self, run: Path, supervisor: psutil.Process, lose_terminal: Callable[[], None]) -> None:
        self.run, self.supervisor, self._lose_terminal = run, supervisor, lose_terminal
        self._hits: dict[tuple[str, int], int] = {}

    def process(self, role: str, rank: int) -> psutil.Process | None:
        """Who plays the role now."""
        wanted = ["--role", role, "--rank", str(rank)]
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.supervisor.children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    command = child.cmdline()
                    if any(command[i : i + 4] == wanted for i in range(len(command))):
                        return child
        return None

    def do(self, fault: Fault) -> tuple[str, Undo | None]:
        """Do it; what came of it, and how it is undone."""
        if fault.kind == "full disk":
            return fill(self.run)
        if fault.kind == "read-only disk":
            return read_only(self.run / "checkpoints")
        if fault.kind == "strangers":
            return strangers(self.run, fault.number), None
        if fault.kind == "no terminal":
            self._lose_terminal()
            return "", None
        victim = self.process(fault.role, fault.rank)
        if victim is None:
            return "nobody there", None
        if fault.kind != "reset" and not self._may_hit((fault.role, fault.rank)):
            return "hit often enough in this life", None
        with contextlib.suppress(psutil.NoSuchProcess):
            if fault.kind == "kill":
                victim.kill()
                with contextlib.suppress(psutil.TimeoutExpired):
                    victim.wait(10)  # until its launcher has seen it: an ending that comes first is another fault
                return "", None
            if fault.kind == "freeze":
                victim.suspend()
                return "", lambda: thaw(victim)
            return reset_links(victim, fault.number), None
        return "it was gone", None

    def _may_hit(self, role: tuple[str, int]) -> bool:
        self._hits[role] = self._hits.get(role, 0) + 1
        return self._hits[role] <= MOST_HITS


def thaw(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)


# -- the disk ----------------------------------------------------------------------------------------------------------


def own_mounts() -> bool:
    """From now on this process and its children see mounts that end with them. False: not allowed to."""
    if os.geteuid() != 0 or _LIBC.unshare(0x20000):  # CLONE_NEWNS
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0


def mount_run(run: Path, megabytes: int) -> bool:
    """A small file system for a run's folder, and another mount of it for the checkpoints, which alone turn read-only
    (a mount with files open for writing cannot)."""
    run.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", run]).returncode:
        return False
    checkpoints = run / "checkpoints"
    checkpoints.mkdir()
    return not subprocess.run(["mount", "--bind", checkpoints, checkpoints]).returncode


def fill(run: Path) -> tuple[str, Undo]:
    """Take all the room there is."""
    filler = run / "audit" / ".filler"
    filler.parent.mkdir(exist_ok=True)
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return "", lambda: filler.unlink(missing_ok=True)


def read_only(mount: Path) -> tuple[str, Undo | None]:
    for _ in range(200):  # EBUSY while a checkpoint is being written
        if not subprocess.run(["mount", "-o", "remount,bind,ro", mount], capture_output=True).returncode:
            return "", lambda: subprocess.run(["mount", "-o", "remount,bind,rw", mount], check=True) and None
    return "it was busy", None


# -- the network -------------------------------------------------------------------------------------------------------


def reset_links(victim: psutil.Process, number: int) -> str:
    """Break a process's connections as a network would: a reset to both ends, in the middle of whatever is said.

    A copy of its descriptor disconnects (connect to AF_UNSPEC); `number` says which links are hit.
    """
    try:
        links = [link for link in victim.net_connections(kind="tcp") if link.status == psutil.CONN_ESTABLISHED]
        own = os.pidfd_open(victim.pid)
    except (psutil.Error, ProcessLookupError):
        return "it was gone"
    hit = 0
    try:
        for i, link in enumerate(links):
            assert link.raddr.ip.startswith("127.")
            if number >> i & 1 or i == number % len(links):
                copy = _LIBC.syscall(_PIDFD_GETFD, own, link.fd, 0)
                if copy < 0:
                    return os.strerror(ctypes.get_errno())
                _LIBC.connect(copy, bytes(16), 16)
                os.close(copy)
                hit += 1
    finally:
        os.close(own)
    return f"{hit} of {len(links)} links"


def strangers(run: Path, number: int) -> str:
    """Knock at every port that the run has published: garbage, silence, half a greeting, a wrong secret."""
    rng = random.Random(number)
    knocked = 0
    for entry in sorted((run / "rendezvous").glob("*.json")):
        try:
            port = int(json.loads(entry.read_text())["port"])
        except (OSError, ValueError, KeyError):
            continue
        for _ in range(rng.choice([1, 5, 30])):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as stranger:
                stranger.settimeout(0.05)
                of = Hello(rng.choice(list(Role)), rng.randrange(9), rng.randrange(9), rng.randrange(2), "0" * 16)
                greeting = Dialer(rng.randbytes(32), of).outgoing
                words = [b"", rng.randbytes(20_000), b"GET / HTTP/1.1\r\n\r\n", b"D3PS" + rng.randbytes(60)]
                stranger.sendall(rng.choice([*words, greeting[:20], greeting[:4] + rng.randbytes(96), greeting]))
                knocked += 1
                with contextlib.suppress(socket.timeout):
                    stranger.recv(1 << 16)
                    stranger.sendall(rng.randbytes(32))
    return f"{knocked} connections"


def descendants() -> list[psutil.Process]:
    """Everybody below this process, also whose parents have died (it is their subreaper)."""
    return [p for p in psutil.Process().children(recursive=True) if _alive(p)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def adopt_orphans() -> None:
    """Let orphans become this process's children, not init's."""
    if _LIBC.prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])


def begin_session(at_terminal: bool) -> None:
    """In a launcher, before it begins: whoever kills the campaign kills it; its output is its controlling terminal."""
    _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if at_terminal:
        os.close(os.open(os.ttyname(1), os.O_RDWR))


def kill_all(timeout_s: float = 30.0) -> None:
    """kill -9 to everybody below, at once and until nobody is left."""
    deadline_s = time.monotonic() + timeout_s
    while (left := descendants()) and time.monotonic() < deadline_s:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
