"""Redraw the figures from committed data: ``python results/architectures/plot.py [LABEL=FOLDER …]``.

costs.csv gives the bars. The long runs' curve.csv give score against core-hours and frames; a missing one is named and
left out. Other folders (run folders too) may be named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dba3c.errors import UserError
from dba3c.plots.curve import Curve, load_curve
from dba3c.plots.learning_curves import plot_learning_curves
from dba3c.studies.architectures import plot_costs, read_csv

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


if __name__ == "__main__":
    main(sys.argv[1:])
