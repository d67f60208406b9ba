"""A run, from Python: how it is, what it recorded, its agent. `dba3c.train` (`launch.api`) makes one.

In: a run's folder, or a folder of results/. Out: words, numbers. Never: torch, unless its agent is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import dba3c
from dba3c.config import TrainConfig
from dba3c.metrics import registry
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import load_curve

if TYPE_CHECKING:
    from dba3c.evaluation.agents import Agent

POINTS_EVERY_S = 1.0
"""Of the run, between two points of a curve."""
Progressed = Literal["frames", "data_points", "games", "hours", "core_hours_held", "cpu_hours"]


class Run(os.PathLike[str]):
    """A run that has a folder: live, finished or committed under results/. Whatever takes a run's path takes it too.

    Raises:
        UserError: `path` is no run's folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = RunFolder.open(path)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status})"

    @property
    def folder(self) -> Path:
        """Where everything that is known about it lies."""
        return self._folder.path

    @property
    def config(self) -> TrainConfig:
        """What it was configured with, complete."""
        return self._folder.train_config()

    @property
    def status(self) -> str:
        """ "live"; "finished", "stopped" (by Ctrl-C, a signal or `stop`) or "failed"; "broken": gone without a word."""
        ended = self._folder.life().get("ended")
        return str(ended["outcome"]) if ended else self._folder.status()

    @property
    def reason(self) -> str:
        """Why it ended, in one line; "" while it is live."""
        return str(self._folder.life().get("ended", {}).get("reason", ""))

    def curve(self, name: str, against: Progressed = "frames") -> Any:
        """What the run recorded of one of its charts (docs/metrics.md lists them), in order of time.

        Args:
            name: "score/mean", or "score_mean", or "score_mean_50" for the mean of the last 50 games.
            against: what the values are laid out by.

        Returns:
            Where pandas is installed a Series [N] float64 of the values, whose index are those of `against`; else both
            as NumPy arrays, (against [N], values [N]) float64. Points without a value are left out.

        Raises:
            UserError: there is no such chart (the nearest are named), or the run has recorded nothing of it yet.
        """
        curve = load_curve(self.folder, POINTS_EVERY_S)
        charts = {chart.replace("/", "_"): chart for chart in registry.charts()}
        charts[f"score_mean_{self.config.run.stop_games}"] = "score/mean"
        values, places = curve.column(charts.get(str(name), str(name))), curve.column(f"progress/{against}")
        kept = np.isfinite(values) & np.isfinite(places)
        try:
            import pandas
        except ImportError:
            return places[kept], values[kept]
        return pandas.Series(values[kept], index=pandas.Index(places[kept], name=against), name=name)

    def agent(self, step: int | None = None, seed: int = 0) -> Agent:
        """The agent of its newest checkpoint, or that of `step`: see `dba3c.load`."""
        return dba3c.load(self.folder, step=step, seed=seed)


def read(path: str | os.PathLike[str]) -> Run:
    """A run by its folder: `read("runs/cartpole").curve("score_mean_50")`. Raises UserError: it is no run's folder."""
    return Run(path)
