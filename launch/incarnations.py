"""A rank that its launcher starts again (a returned node, a restarted pod) must not pass for its dead predecessor."""

from __future__ import annotations

import json
from pathlib import Path

from dba3c.atomic_files import write_atomically

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
