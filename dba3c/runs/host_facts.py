"""What a run's folder says about where it ran: an allow-list of facts, never the environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
from pathlib import Path

PACKAGES = (
    "dba3c", "torch", "numpy", "gymnasium", "ale-py", "mujoco", "vizdoom", "gfootball", "mpi4py", "horovod",
    "tensorboard", "rich",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result may depend on; absent packages are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> dict[str, object]:
    """{"commit": hash, "dirty": whether tracked files differ}; {} when this is not a git checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        return {"commit": head, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def namespace(kind: str) -> str:
    """Equal in the processes that share this kernel's boot and, in it, the namespace: of "pid"s, or of the "net"."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(f'/proc/self/ns/{kind}')}"
    except OSError:
        return socket.gethostname()


def usable_cores() -> int:
    """Cores that this process may run on (its affinity), not the machine's."""
    return len(os.sched_getaffinity(0))


def host() -> dict[str, object]:
    """Name, operating system, processor, cores and memory (GiB) of this machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "name": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "memory_gib": round(memory_bytes / 2**30, 1),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
