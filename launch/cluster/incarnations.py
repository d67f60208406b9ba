"""What is started again must not pass for its dead predecessor: by its supervisor, its launcher, or as a resumed run.

Nor may the histories of a run's lives be mistaken for each other: server 0's terms follow from its incarnation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dba3c.runs.atomic_files import write_atomically

PER_START = 100
"""Incarnations that one start of a rank may use up; more than any role is restarted by its supervisor."""


def first_incarnation(run_dir: Path, rank: int) -> int:
    """0 for the first start of a rank in this run folder, then 100, 200, …: counted in ``logs/rank-RANK.json``."""
    path = run_dir / "logs" / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        starts = int(json.loads(path.read_text())["starts"])
    except FileNotFoundError:
        starts = 0
    write_atomically(path, json.dumps({"starts": starts + 1}) + "\n")
    return starts * PER_START


def counting_from(first: int, command: Callable[[int], Sequence[str]]) -> Callable[[int], Sequence[str]]:
    """A role's command line by incarnation, for a supervisor that counts from 0."""
    return lambda incarnation: command(first + incarnation)
