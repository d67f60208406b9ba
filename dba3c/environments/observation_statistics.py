"""Observation statistics beside the checkpoints: saved by those who gather them, merged by those who evaluate.

observations/worker-0.json    {"2000": {"count": …, "mean": […], "squares": […]}, …}: by the checkpoint's step

Every worker (or actor) normalises by what its own environments have shown, and keeps a snapshot for each checkpoint's
step. A resumed worker goes on from its own; an evaluation, a film and a worker that was not there before take those of
all, merged as if one had seen everything (`RunningStatistics.merge`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dba3c.environments.normalization import NormalizedObservations, RunningStatistics
from dba3c.environments.protocol import VectorEnvironment
from dba3c.errors import UserError

FOLDER = "observations"
Stored = dict[str, Any]


def statistics_of(run: Path, step: int, name: str | None = None) -> Stored | None:
    """The statistics that belong to the checkpoint of `step`: of one process (`name`), or of all, merged.

    Each process's newest snapshot that is not younger than the checkpoint counts; its oldest where all are younger.
    None where there are none.
    """
    files = sorted((run / FOLDER).glob("*.json")) if name is None else [run / FOLDER / f"{name}.json"]
    merged: RunningStatistics | None = None
    for snapshots in filter(None, map(read_snapshots, files)):
        steps = sorted(snapshots)
        stored = snapshots[max((s for s in steps if s <= step), default=steps[0])]
        merged = merged or RunningStatistics(len(stored["mean"]))
        merged.merge(RunningStatistics.of_dict(stored))
    return None if merged is None else merged.to_dict()


def use_statistics(environments: VectorEnvironment, stored: Stored | None, checkpoint: str) -> None:
    """Let environments of the evaluation view normalise by `stored`; nothing where they do not normalise.

    Raises:
        UserError: they do, and the run kept no statistics.
    """
    if not isinstance(environments, NormalizedObservations):
        return
    if stored is None:
        raise UserError(f"{checkpoint}: its run kept no observation statistics, which its observations need")
    environments.statistics.load_dict(stored)


def read_snapshots(path: Path) -> dict[int, Stored] | None:
    """One process's snapshots by step, None where it has none. Raises UserError when the file is another's."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return {int(step): stored for step, stored in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a file of observation statistics: {error}") from error
