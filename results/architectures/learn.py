"""Score against core-hours, three architectures × three sizes of network, the same processor time for each.

    python results/architectures/learn.py          (1.35 core-hours, 45 minutes on 2 idle cores; stopped, it goes on)

Runs are ended by frames, as many as costs.csv says fit into the budget. Writes learning/ (study.json and the runs,
downsampled) beside this file; ``results/plot.py`` draws it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from costs import read_csv

from dba3c.studies.results import commit_into
from dba3c.studies.study import Shape, Study, build, load
from launch.cli.study import run_all

HERE = Path(__file__).resolve().parent
STUDY = Path("studies/architectures-learning")
BUDGET_CORE_HOURS = 0.15
LEFT_OUT = "async-servers"
ENVIRONMENT = "breakout"


def declared() -> Study:
    """The grid of `dba3c study architectures` on two cores, each run as long as it costs BUDGET_CORE_HOURS."""
    built = build("architectures", Shape(env=ENVIRONMENT, workers=2, servers=2, seeds=1), ("--track",))
    core_s = {
        f"{cost.architecture}-{cost.network}": cost.core_s_per_million_frames for cost in read_csv(HERE / "costs.csv")
    }
    points = []
    for point in built.points:
        if not point.name.startswith(LEFT_OUT):
            frames = round(BUDGET_CORE_HOURS * 3600 / core_s[point.name] * 100) * 10_000
            points.append(replace(point, words=(*point.words, "--total-frames", str(frames))))
    return replace(built, points=tuple(points))


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    declared().save(STUDY)
    code = run_all(list(load(STUDY).runs(STUDY)))
    if code == 0:
        shutil.rmtree(HERE / "learning", ignore_errors=True)
        commit_into(STUDY, HERE / "learning", every_s=10.0)
    return code


if __name__ == "__main__":
    sys.exit(main())
