"""What a run's folder says about where it ran, an allow-list of facts, never the environment; and what this process was
given of the host's processor."""

import importlib.metadata
import math
import os
import platform
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PACKAGES = (
    "dba3c", "torch", "numpy", "gymnasium", "ale-py", "mujoco", "vizdoom", "gfootball", "mpi4py", "horovod",
    "tensorboard", "rich",
)  # fmt: skip
CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")
PROC = Path("/proc")
CPUINFO, MEMINFO = PROC / "cpuinfo", PROC / "meminfo"
QUICK_IN_BFLOAT16 = ({"amx_bf16"}, {"avx512_bf16", "AuthenticAMD"})
"""Words of /proc/cpuinfo, one set of which is there: Intel and AMD; ARM was not measured."""
RANK_SIGNS = ("TORCHELASTIC_RUN_ID", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables that a launcher sets for its ranks and has not itself, the inner launcher's first."""
_NUMBERS = {"cpu family": "family", "model": "model", "stepping": "stepping"}


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
    """{"commit": hash, "dirty": whether tracked files differ}; {} when this is not a git checkout, but for one of the
    user's own that it was installed in."""
    try:
        _git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
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


def launcher_pid(environ: Mapping[str, str] = os.environ, proc: Path = PROC) -> int:
    """Which process has started this rank: the nearest ancestor without the launcher's variable, which a script around
    the rank has, too. The parent where that cannot be told."""
    parent = pid = os.getppid()
    sign = next((name for name in RANK_SIGNS if name in environ), None)
    try:
        while sign and pid and f"\0{sign}=".encode() in b"\0" + (proc / f"{pid}/environ").read_bytes():
            pid = int((proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return parent
    return pid or parent


def started_by() -> str:
    """Which process has started this one, whatever host others are on."""
    return f"{launcher_pid()} of {namespace('pid')}"


def affinity_cores() -> list[int]:
    """The cores this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


def usable_cores() -> int:
    """How many this process may use: those of its affinity, or of its control group's quota, not the machine's."""
    affinity, quota = len(affinity_cores()), cgroup_quota_cores()
    return affinity if quota is None else min(affinity, max(1, int(quota)))


def is_quick_in_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether convolutions take less time in bfloat16 than in float32. Intel's AVX-512 without AMX, as virtual machines
    may have it, takes longer (whole runs 1.1 to 1.3 times), a processor without instructions for it 2 (AVX-512) to 90
    times (AVX2)."""
    words = set((_read(cpuinfo) or "").split())
    return any(each <= words for each in QUICK_IN_BFLOAT16)


def cgroup_quota_cores(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> float | None:
    """CPU quota in cores of this process's control group and those above it, version 1 or 2; None without one."""
    mounts = [(root, ""), *((root / name, "cpu") for name in ("cpu", "cpu,cpuacct", "cpuacct,cpu"))]
    least = min(map(_quota, _control_groups(mounts, self_cgroup)))
    return None if least == math.inf else least


def available_memory_bytes(root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> float:
    """The least of the memory that the machine has left and what this process's control groups may take."""
    lines = (line.split() for line in (_read(MEMINFO) or "").splitlines())
    left = next((1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:"), math.inf)
    groups = _control_groups([(root, ""), (root / "memory", "memory")], self_cgroup)
    limits = (_read(group / name) for group in groups for name in ("memory.max", "memory.limit_in_bytes"))
    return min([left, *(int(limit) for limit in limits if limit and limit != "max")])


def _control_groups(mounts: Sequence[tuple[Path, str]], self_cgroup: Path) -> Iterator[Path]:
    """This process's and those above it, of each mount (and its controller in version 1, "" in version 2).

    In a container the path in /proc/self/cgroup may be the host's, and not there: then only the mount itself counts.
    """
    paths: dict[str, str] = {}
    for line in (_read(self_cgroup) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    for mount, controller in mounts:
        deepest = mount / paths.get(controller, "")
        groups = [deepest, *deepest.parents] if deepest.is_dir() else [mount]
        yield from (group for group in groups if group.is_relative_to(mount))


def _quota(group: Path) -> float:
    v1 = f"{_read(group / 'cpu.cfs_quota_us') or -1} {_read(group / 'cpu.cfs_period_us') or 0}"
    quota_us, period_us = (_read(group / "cpu.max") or v1).split()
    limited = quota_us != "max" and int(quota_us) > 0 and int(period_us) > 0
    return int(quota_us) / int(period_us) if limited else math.inf


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


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
    """By name and numbers: a virtual machine's name may be no more than "AMD EPYC"."""
    first = (_read(CPUINFO) or "").partition("\n\n")[0]
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    numbers = [f"{what} {said[name]}" for name, what in _NUMBERS.items() if name in said]
    name = said.get("model name") or platform.processor() or "unknown"
    return f"{name} ({', '.join(numbers)})" if numbers else name
