"""DBA3C's third plot, the live mean score of ten experiments, for a game that a laptop learns.

    python results/learning_curves/measure.py          (about 7 minutes on an idle machine of 2 cores)
    python results/learning_curves/measure.py --study STUDY       (only reads a finished study)

Writes study.json and the runs (downsampled), README.md, and the figure.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dba3c.studies.curve import Curve
from dba3c.studies.results import commit_into, read_results
from dba3c.studies.statistics import TimeToGoal, time_to_goal

HERE = Path(__file__).resolve().parent
GOAL = 475.0
"""Gymnasium's own: CartPole-v1 counts as solved."""
WORDS = ("study", "learning_curves", "--env", "CartPole-v1", "--workers", "2", "--servers", "2", "--seeds", "10")
TRAIN = ("--total-frames", "200000", "--stop-score", "1000", "--track")


def frames_to_goal(curve: Curve) -> tuple[float, bool]:
    """(frames until the mean of 50 games first was 475, True), or (the run's frames without, False)."""
    row, frames = curve.reached(GOAL), curve.column("progress/frames")
    return (float(frames[-1]), False) if row is None else (float(frames[row]), True)


def final_score(curve: Curve) -> float:
    """The mean of the run's last 50 games."""
    return float(curve.column("score/mean")[-1])


def page() -> str:
    """README.md, from the runs beside it."""
    (result,) = read_results(HERE).points
    life = result.curves[0].meta["lives"][0]
    final = result.estimate(final_score)
    reached = time_to_goal(*zip(*map(frames_to_goal, result.curves), strict=True))
    assert final is not None
    runs = len(result.curves)
    source = life["source"]
    made = time.strftime("%Y-%m-%d", time.gmtime(life["started_s"]))
    return f"""# Ten experiments

    python results/learning_curves/measure.py

which runs `dba3c {" ".join(WORDS)} -- {" ".join(TRAIN)}`. {made}, commit {source.get("commit", "unknown")}\
{" (with changes)" if source.get("dirty") else ""}, {life["host"]["usable_cores"]} cores of {life["host"]["processor"]}.

![live mean score](learning_curves.png)

CartPole-v1, the live mean score of the last 50 games of {runs} runs that differ in nothing but
their seed: the mean over runs with its 95 % bootstrap band, each run thin. {_reached(reached)}
The last 50 games scored
{final.centre:.0f} ({final.low:.0f} to {final.high:.0f}; interquartile mean over runs, 95 % bootstrap), from
{min(final.values):.0f} to {max(final.values):.0f}; 500 is the most there is.
Against frames, not hours: the machine may have had other work.
"""


def _reached(found: TimeToGoal) -> str:
    told = found.told.replace("reached", f"reached {GOAL:g}")
    if math.isinf(found.median):
        return f"{told}: the median seed needs more than {found.budget:,.0f} frames."
    high = f"more than {max(found.seen):,.0f}" if math.isinf(found.high) else f"{found.high:,.0f}"
    return (
        f"{told}, the median of all {len(found.seen)} after\n{found.median:,.0f} frames ({found.low:,.0f} to {high}; a "
        "run that did not reach it counts as later)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, help="a finished study; without it one is run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        study = options.study or Path(temporary) / "study"
        if options.study is None:
            command = [sys.executable, "-m", "launch", *WORDS, "--into", str(study), "--", *TRAIN]
            subprocess.run(command, check=True)
        shutil.rmtree(HERE / "learning", ignore_errors=True)
        commit_into(study, HERE, every_s=1.0)
    (HERE / "README.md").write_text(page(), encoding="utf-8")
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
