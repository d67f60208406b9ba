"""`dba3c watch` and `dba3c export`: what reads a run and changes nothing in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from launch.options import parse


@dataclass(frozen=True)
class WatchArguments:
    """Look at a live or finished run, on its machine or over a shared file system."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""


def watch(words: Sequence[str]) -> int:
    """dba3c watch RUN"""
    from dba3c.monitor.watch import watch as look

    status = look(parse(WatchArguments, words, "dba3c watch").run)
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
    from dba3c.monitor.export import export as replay

    arguments = parse(ExportArguments, words, "dba3c export")
    points = replay(arguments.run, arguments.to, arguments.into)
    print(f"{points} points to {arguments.to}")
    return 0
