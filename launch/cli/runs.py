"""Commands on a run that exists: `dba3c stop` asks it to end, `watch` looks at it, `export` tells a tracker of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dba3c.errors import UserError
from dba3c.metrics import monitor as trackers
from dba3c.metrics import watch as live_view
from dba3c.runs.ending import STOP_COMMAND
from dba3c.runs.folder import RunFolder
from launch.cli.options import parse
from launch.slurm import controller
from launch.slurm.job import WARNING


@dataclass(frozen=True)
class StopArguments:
    """Ask a live run to end with a checkpoint."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""


def stop(words: Sequence[str]) -> int:
    """dba3c stop RUN"""
    print(ask_to_end(parse(StopArguments, words, "dba3c stop").run))
    return 0


def ask_to_end(run: str | os.PathLike[str]) -> str:
    """Ask a live run to end with a checkpoint; a line on what becomes of it. Raises UserError: it is not live."""
    folder = RunFolder.open(run)
    status = folder.status()
    if status == "live" and folder.request_stop(STOP_COMMAND):
        return f"asked {folder.path} to end with a checkpoint"
    what = f"{folder.path} is not live: it is {status}"
    if status == "live":
        what = f"{folder.path} is ending already: {folder.stop_reason()}"
        if not what.endswith(WARNING):
            return what
    job = controller.next_life(folder.path)
    raise UserError(f"{what}, but {job}" if job else what)


@dataclass(frozen=True)
class WatchArguments:
    """Look at a live or finished run, on its machine or over a shared file system."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""


def watch(words: Sequence[str]) -> int:
    """dba3c watch RUN"""
    status = live_view.watch(parse(WatchArguments, words, "dba3c watch").run)
    return 0 if status in ("live", "finished") else 1


@dataclass(frozen=True)
class ExportArguments:
    """Replay a run's metrics into a tracker."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""

    to: str
    """tensorboard, neptune, mlflow or wandb."""

    into: Path | None = None
    """Where a tracker that writes files puts them; RUN/exports by default."""


def export(words: Sequence[str]) -> int:
    """dba3c export RUN --to TRACKER"""
    arguments = parse(ExportArguments, words, "dba3c export")
    points = trackers.export(arguments.run, arguments.to, arguments.into)
    print(f"{points} points to {arguments.to}")
    return 0
