"""DBA3C's first plot, time to a mean of 300 of Breakout against nodes, composed of what was measured and nothing else.

Updates to 300, from the learning runs of `results/batch_size` (RUNS), times the mean step of the time-dilated rows of
the part `to_score`: the nodes there share as many environments as those runs had, so their updates have the same
samples and the run would be the same one, but for the clock. Where an exchange takes the processors longer than a
row's, which is dilated and has processors D times too fast, theirs is counted (`processors.py`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from figures import read, way
from lab import CORES
from matplotlib.ticker import ScalarFormatter

from dba3c.studies.curve import load_curve
from dba3c.studies.figures import IDEAL, PALETTE, finish, new_figure, save
from dba3c.studies.page import rows_of

HERE = Path(__file__).resolve().parent
GOAL = 300.0
ENVIRONMENTS, LENGTH_STEPS = 720, 5
"""Of the cluster's run, an update of 5 steps of each; all nodes' lanes share them."""
SAMPLES = ENVIRONMENTS * LENGTH_STEPS
RUNS = {
    480: ("batch_size/nstep-rmsprop-480-0.0012/seed-*",),
    1200: ("batch_size/nstep-rmsprop-1200-0.0019/seed-*", "gpu/breakout_16_lanes"),
    1920: ("batch_size/nstep-rmsprop-1920-0.0024/seed-*",),
    SAMPLES: ("batch_size/nstep-rmsprop-3600-0.0033/seed-*",),
}
"""By samples of an update; of each seed."""
DBA3C_NODES, DBA3C_MINUTES = 64, 21.0
"""Of 12 cores each; arXiv 1801.02852."""
DBA3C_CORE_MINUTES = 24 * 600.0
"""Its ideal: 10 hours on one node of 24 cores (the same abstract), divided by cores."""
SIZES_GBIT = 10.0
"""At which sizes of an update are compared."""
PROCESSORS = HERE / "processors.jsonl"
SAME_EXCHANGE = ("exchange", "workers", "servers", "colocated", "megabytes")
"""What a line there and a row have in common."""


class Learnt(NamedTuple):
    """The learning runs, where they first had the goal."""

    of_seeds: tuple[float, ...]
    """Updates of each."""
    agent_steps: float
    """Mean, like the next."""
    cpu_hours: float

    @property
    def updates(self) -> float:
        return statistics.mean(self.of_seeds)


class Composed(NamedTuple):
    """One point of the plot."""

    row: dict[str, Any]
    processor_ms: float
    """That the exchange takes of the busiest process."""

    @property
    def step_ms(self) -> float:
        """Of the computing, and of the wire or the processor, whichever takes longer."""
        return float(max(self.row["step_ms"], self.row["slowest_compute_ms"] + self.processor_ms))

    @property
    def minutes(self) -> float:
        """Of all updates."""
        return self.updates * self.step_ms / 60e3

    @property
    def nodes(self) -> int:
        """Of workers and of dedicated servers."""
        return int(self.row["workers"]) + (0 if self.row["colocated"] else int(self.row["servers"]))

    @property
    def gradients(self) -> int:
        """That make an update: their lanes share the environments."""
        return int(self.row["workers"] - self.row["backup"])

    @property
    def environments(self) -> int:
        """Of a lane."""
        return int(json.loads(self.row["key"])[-1])

    @property
    def samples(self) -> int:
        """Of an update."""
        return self.gradients * CORES * self.environments * LENGTH_STEPS

    @property
    def updates(self) -> float:
        """To the goal."""
        return learnt(self.samples).updates

    @property
    def who(self) -> str:
        return f"{way(self.row)}, {self.row['gbit']:g} Gbit/s"

    @property
    def series(self) -> str:
        """That it is drawn with: servers beside workers are one, however many."""
        return f"servers beside workers, {self.row['gbit']:g} Gbit/s" if self.row["colocated"] else self.who


@cache
def learnt(samples: int) -> Learnt:
    """Raises ValueError: a run has not reached it, of which the figure and the page would have to speak."""
    steps, hours = [], []
    for folder in (folder for pattern in RUNS[samples] for folder in sorted(HERE.parent.glob(pattern))):
        curve = load_curve(folder)
        at = curve.reached(GOAL)
        if at is None:
            raise ValueError(f"{folder} did not reach {GOAL:g}, and the page does not say what such a seed counts")
        steps.append(float(curve.column("progress/data_points")[at]))
        hours.append(float(curve.column("progress/cpu_hours")[at]))
    of_seeds = tuple(count / samples for count in steps)
    return Learnt(of_seeds, statistics.mean(steps), statistics.mean(hours))


def composed(rows: Sequence[dict[str, Any]]) -> list[Composed]:
    """The quickest first."""
    shown = [row for row in rows if row["part"] == "to_score"]
    found = [Composed(row, undilated(**{name: row[name] for name in SAME_EXCHANGE})) for row in shown]
    return sorted(found, key=lambda point: point.minutes)


def of_sizes(points: Sequence[Composed]) -> list[Composed]:
    """Of each size of an update and number of nodes, all of which compute, the best exchange.

    Args: points: the quickest first.
    """
    best: dict[tuple[int, int], Composed] = {}
    for point in points:
        if point.row["gbit"] == SIZES_GBIT and point.nodes == point.gradients and not point.row["refused"]:
            best.setdefault((point.samples, point.nodes), point)
    return [point for _, point in sorted(best.items(), key=itemgetter(0))]


def undilated(role: str = "", **which: Any) -> float:
    """Milliseconds of a step that an exchange takes of its busiest process, the median of the runs in PROCESSORS.

    Args:
        role: "server" or "worker": of these alone.
        which: what the lines have.

    Raises:
        StatisticsError: it was not measured.
    """
    mine = [line for line in rows_of(PROCESSORS) if all(line[name] == value for name, value in which.items())]
    return statistics.median(line[f"{role}_ms"] if role else max(line["server_ms"], line["worker_ms"]) for line in mine)


def draw(folder: Path) -> None:
    """Minutes against nodes, beside DBA3C's: for each way and wire, and for each size of an update."""
    points = composed(read(folder))
    if not points:
        return
    of_most = [(point.series, point) for point in points if point.samples == SAMPLES]
    _draw(sorted(of_most, key=itemgetter(0)), f"{SAMPLES:,} samples an update", folder / "to_score")
    sizes = [(f"{point.samples:,} samples an update", point) for point in of_sizes(points)]
    _draw(sizes, f"the best exchange, {SIZES_GBIT:g} Gbit/s", folder / "to_score_samples")


def _draw(named: Sequence[tuple[str, Composed]], common: str, path: Path) -> None:
    """Args: named: each point with the name of its series."""
    figure, axes = new_figure()
    for index, who in enumerate(dict.fromkeys(name for name, _ in named)):
        mine = sorted((point for name, point in named if name == who), key=lambda point: point.nodes)
        joined = "-" if len(mine) > 2 else "none"  # two points are no line
        nodes, minutes = [p.nodes for p in mine], [p.minutes for p in mine]
        axes.plot(nodes, minutes, linestyle=joined, marker="o", color=PALETTE[index], label=who)
    points = [point for _, point in named]
    refused = [point for point in points if point.row["refused"]]
    if refused:
        hollow = {"linestyle": "none", "marker": "o", "color": "white", "markersize": 3}
        axes.plot([p.nodes for p in refused], [p.minutes for p in refused], **hollow, zorder=3)
        axes.plot([], [], "o", color="gray", markerfacecolor="white", label="on too busy a machine: not counted")
    fewest = min(points, key=lambda point: (point.nodes, point.minutes))
    every_n = sorted({point.nodes for point in points} | {DBA3C_NODES})
    ideal = [fewest.minutes * fewest.nodes / n for n in every_n]
    axes.plot(every_n, ideal, label="theoretical, from the fewest nodes", **IDEAL)
    theirs = [DBA3C_CORE_MINUTES / (CORES * n) for n in every_n]
    axes.plot(every_n, theirs, label="DBA3C's ideal, of its 10 hours on 24 cores", **IDEAL | {"linestyle": "-."})
    told = "DBA3C, 2017: a harder protocol"
    axes.plot(DBA3C_NODES, DBA3C_MINUTES, "*", color="black", markersize=11, linestyle="none", label=told)
    axes.set_title(f"{common}. An estimate: updates of real runs × an emulated step", fontsize=8.5)
    finish(axes, f"nodes of {CORES} cores", f"minutes to a mean of {GOAL:g}, Breakout", (4, 8, 16, 32, 64), log=True)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    save(figure, path)
