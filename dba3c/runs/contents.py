"""What a run's folder is made of, and which folders a run can begin or go on in."""

import re
from pathlib import Path

from dba3c.errors import UserError
from dba3c.runs.files import is_there

CURVE_FILE = "curve.csv"
"""Stands for the records of a run that was committed (under results/), which nothing is written to any more."""
FOLDERS = ("metrics", "tensorboard", "checkpoints", "videos", "rendezvous", "audit", "logs")
SHOWN_RUNS = 3
"""How many an error names where a folder of runs is given in place of one."""
_OURS = {*FOLDERS, "observations", "secret", "stop.json", "meta.json", "lock.json"}
_PASSING = re.compile(r"\.{1,2}(now-|probe-|lock|nfs|slurm|neptune|secret-|(config|meta|stop|refused)\.json|DS_Store)")
"""Files that other ranks, earlier launches or the file system may have there before there is a run."""
_REMAINS = ("checkpoints", "metrics", "observations", "logs")


def runs_beneath(folder: Path) -> str:
    """ "; did you mean …?" with the first runs in the folder, or in one of its folders; "" where none is there."""
    found = [config.parent for depth in ("*", "*/*") for config in sorted(folder.glob(f"{depth}/config.json"))]
    here = Path.cwd()
    names = [str(run.relative_to(here) if run.is_relative_to(here) else run) for run in found[:SHOWN_RUNS]]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def refuse_what_is_there(folder: Path, resume: bool) -> None:
    """Raises UserError: no run can begin, or go on (`resume`), with what is in this folder."""
    holds_run = is_there(folder / "config.json")
    if resume and not holds_run:
        raise UserError(f"nothing to resume: {folder} holds no run (no config.json)")
    if is_there(folder / CURVE_FILE):
        raise UserError(f"{folder} is a committed run, to be looked at and played with: no run can go on there")
    if holds_run and not resume:
        how = f'resume it (--resume), or choose another folder; in Python: dba3c.resume("{folder}")'
        raise UserError(f"{folder} already holds a run: {how}")
    refuse_strangers(folder)


def refuse_strangers(folder: Path) -> None:
    """Raises UserError: the folder holds no run, but other things, or remains of one."""
    if is_there(folder / "config.json"):
        return
    strangers = _entries(folder) - _OURS
    if strangers:
        raise UserError(f"{folder} is not a run folder and not empty ({min(strangers)}): choose another")
    remains = [name for name in _REMAINS if _entries(folder / name)]
    if remains:  # a new run would go on from another one's checkpoints
        raise UserError(f"{folder} holds {' and '.join(remains)} of a run, and no config.json: choose another folder")


def _entries(folder: Path) -> set[str]:
    """Names of what stays in a folder; none where it is no folder. Raises OSError."""
    try:
        return {entry.name for entry in folder.iterdir() if not _PASSING.match(entry.name)}
    except (FileNotFoundError, NotADirectoryError):
        return set()
