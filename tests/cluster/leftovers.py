"""What an earlier run of the cluster tests left behind when it was killed: daemons."""

from __future__ import annotations

from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd", "slurmscriptd")
OWNER = "owner.pid"


def clear() -> None:
    """End the labs whose tests are dead; nobody else's."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] in DAEMONS and _lab_is_orphaned(process):
            process.kill()


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
