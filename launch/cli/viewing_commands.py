"""`dba3c watch`, `dba3c export` and `dba3c plot`: what reads runs and changes nothing in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from launch.cli.options import parse


@dataclass(frozen=True)
class WatchArguments:
    """Look at a live or finished run, on its machine or over a shared file system."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""


def watch(words: Sequence[str]) -> int:
    """dba3c watch RUN"""
    from dba3c.metrics.watch import watch as look

    status = look(parse(WatchArguments, words, "dba3c watch").run)
    return 0 if status in ("live", "finished") else 1


@dataclass(frozen=True)
class PlotArguments:
    """Draw learning curves; runs that differ only in their seeds become one line with a bootstrap band."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""

    into: Path = Path("learning_curves")
    """The figure, written as INTO.png and INTO.svg."""

    x: str = "frames"
    """frames, hours, core-hours, or any chart of docs/metrics.md."""

    y: str = "score/mean"
    """Any chart of docs/metrics.md."""

    statistic: Literal["iqm", "mean"] = "iqm"
    """What is drawn of several seeds."""

    title: str = ""


def plot(words: Sequence[str]) -> int:
    """dba3c plot RUN..."""
    from dba3c.studies.learning_curves import plot_runs

    arguments = parse(PlotArguments, words, "dba3c plot")
    written = plot_runs(arguments.runs, arguments.into, arguments.x, arguments.y, arguments.statistic, arguments.title)
    print(*written, sep="\n")
    return 0


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
    from dba3c.metrics.export import export as replay

    arguments = parse(ExportArguments, words, "dba3c export")
    points = replay(arguments.run, arguments.to, arguments.into)
    print(f"{points} points to {arguments.to}")
    return 0
