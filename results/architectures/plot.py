"""Redraw the figures from committed data: ``python results/architectures/plot.py [LABEL=FOLDER …]``.

costs.csv gives the bars, learning/ score against core-hours for each size of network. The long runs' curve.csv give
score against core-hours and frames up to the stop score; a missing one is named and left out. Other folders (run
folders too) may be named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from dba3c.errors import UserError
from dba3c.studies.architectures import ARCHITECTURES, plot_costs, read_csv
from dba3c.studies.curve import Curve, load_curve
from dba3c.studies.figures import PALETTE, save
from dba3c.studies.learning_curves import plot_learning_curves
from dba3c.studies.results import read_results
from dba3c.studies.study import NETWORK_SIZES

HERE = Path(__file__).parent
LONG_RUNS = {
    "worker + servers": HERE.parent / "breakout_2cores",
    "central inference": HERE.parent / "breakout_central",
}
AXES = {"score_cpu_hours": "progress/cpu_hours", "score_frames": "frames"}
"""Not core-hours held: the long runs shared their machine with other work."""


def main(words: list[str]) -> None:
    """Draw what there is."""
    if not (HERE / "costs.csv").exists():
        print("not measured yet: python results/architectures/measure.py", file=sys.stderr)
        return
    plot_costs(read_csv(HERE / "costs.csv"), HERE)
    if (HERE / "learning" / "study.json").exists():
        plot_budget()
    named = {label: Path(folder) for label, _, folder in (word.partition("=") for word in words)}
    groups: dict[str, list[Curve]] = {}
    for label, folder in (named or LONG_RUNS).items():
        try:
            groups[label] = [load_curve(folder)]
        except UserError as error:
            print(f"left out: {label}: {error}", file=sys.stderr)
    if not groups:
        print("no long run to draw", file=sys.stderr)
        return
    for name, x in AXES.items():
        plot_learning_curves(groups, HERE / name, x=x, goal=300.0)


def plot_budget() -> None:
    """learning/: a panel for each size of network, a line for each architecture."""
    curves = {result.point.name: result.curves[0] for result in read_results(HERE / "learning").points}
    figure = Figure(figsize=(10.0, 3.2), layout="constrained")
    panels = figure.subplots(1, len(NETWORK_SIZES), sharex=True)
    for axes, network in zip(panels, NETWORK_SIZES, strict=True):
        for index, (architecture, label) in enumerate(ARCHITECTURES.items()):
            curve = curves.get(f"{architecture}-{network}")
            if curve is not None:
                played = curve.column("progress/games") >= 50
                hours, score = curve.column("progress/cpu_hours")[played], curve.column("score/mean")[played]
                axes.plot(hours, score, color=PALETTE[index], linewidth=1.4, label=label)
        axes.set_title(f"{network} network", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    figure.legend(handles=lines.values(), loc="outside upper center", ncols=len(lines), frameon=False, fontsize=8)
    figure.supxlabel("core-hours of processor time, all roles", fontsize=9)
    figure.supylabel("mean score of the last 50 games", fontsize=9)
    save(figure, HERE / "score_budget")


if __name__ == "__main__":
    main(sys.argv[1:])
