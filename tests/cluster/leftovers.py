"""What an earlier run of the cluster tests left behind when it was killed: daemons, namespaces."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psutil

NAMESPACE = re.compile(r"(d(\d+)n)\d+")
"""PREFIXi, where PREFIX holds the pid of the tests that made it."""
DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd", "slurmscriptd")
OWNER = "owner.pid"


def prefix_of(pid: int) -> str:
    """Of a process's namespaces and links."""
    return f"d{pid}n"


def clear() -> None:
    """End the labs whose tests are dead; nobody else's."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] in DAEMONS and _lab_is_orphaned(process):
            process.kill()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    orphans = {match[1] for match in map(NAMESPACE.match, listed.splitlines()) if match and _is_dead(match[2])}
    for prefix in orphans:
        script = Path(__file__).with_name("netns.sh")
        subprocess.run([script, "down", prefix, "64"], check=True, timeout=60)


def _lab_is_orphaned(process: psutil.Process) -> bool:
    """Whether one of its arguments, or its SLURM_CONF, lies in a lab whose owner is dead."""
    try:
        places = [*(process.info["cmdline"] or []), process.environ().get("SLURM_CONF", "")]
    except (psutil.Error, OSError):
        return False
    for place in places:
        for folder in Path(place.partition("=")[2] or place).parents:
            if (folder / OWNER).exists():
                return _is_dead((folder / OWNER).read_text())
    return False


def _is_dead(pid: str) -> bool:
    return not psutil.pid_exists(int(pid))
