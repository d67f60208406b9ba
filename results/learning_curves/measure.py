"""DBA3C's third plot, the live mean score of ten experiments, for a game that a laptop learns.

    python results/learning_curves/measure.py          (about 7 minutes on an idle machine of 2 cores)

Writes study.json and the runs (downsampled), the table of README.md, and the figure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dba3c.studies.curve import Curve
from dba3c.studies.page import made_by, markdown, renew
from dba3c.studies.results import commit_into, read_results, time_to_score

HERE = Path(__file__).resolve().parent
GOAL = 475.0
"""Gymnasium's own: CartPole-v1 counts as solved."""
WORDS = ("study", "learning_curves", "--env", "CartPole-v1", "--workers", "2", "--servers", "2", "--seeds", "10")
TRAIN = ("--total-frames", "200000", "--stop-score", "1000", "--track")


def final_score(curve: Curve) -> float:
    """The mean of the run's last 50 games."""
    return float(curve.column("score/mean")[-1])


def write_page() -> None:
    """The table and the machine of README.md, from the runs beside it."""
    (result,) = read_results(HERE).points
    reached = time_to_score(result.curves, GOAL, "progress/frames", seeds=result.seeds)
    columns = ("runs", f"thousand frames to {GOAL:g}, median", "last 50 games, interquartile mean")
    row = (len(result.curves), reached.times(1e-3), result.estimate(final_score))
    renew(HERE / "README.md", made_by(result.curves[0].meta["lives"][0]), markdown(columns, [row]))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        study = Path(temporary) / "study"
        subprocess.run([sys.executable, "-m", "launch", *WORDS, "--into", str(study), "--", *TRAIN], check=True)
        shutil.rmtree(HERE / "learning", ignore_errors=True)
        commit_into(study, HERE, every_s=1.0)
    write_page()
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
