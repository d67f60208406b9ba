"""DBA3C's six games and Pong, all with the same small budget of frames.

    python results/games/measure.py          (an hour on an idle machine of 2 cores; stopped, it goes on)
    python results/games/measure.py --study STUDY       (only reads a finished study)

Writes study.json and the runs (downsampled), the table of README.md, and the figure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dba3c.studies.curve import Curve
from dba3c.studies.page import made_by, markdown, renew
from dba3c.studies.results import PointResult, best_mean_score, commit_into, read_results
from dba3c.studies.study import DBA3C_SCORES

HERE = Path(__file__).resolve().parent
STUDY = Path("studies/games")
WORDS = ("study", "games", "--seeds", "1", "--workers", "2", "--servers", "1")
TRAIN = ("--total-frames", "4000000", "--precision", "bfloat16", "--network", "small", "--track")
LEAST_GAIN = 0.25
"""Of the first 50 games' mean: a game whose last 50 are better by less has not been learned."""


def first_and_last(curve: Curve) -> tuple[float, float]:
    """Mean scores of 50 games: the first 50 that the run reports together, and the last 50."""
    known = curve.column("score/mean")[curve.column("progress/games") >= 50]
    return float(known[0]), float(known[-1])


def table(points: Sequence[PointResult]) -> str:
    """A line for each game."""
    columns = (
        "game", "first 50 games", "last 50 games", "best mean of 50", "learned", "million frames", "processor hours",
        "DBA3C's score",
    )  # fmt: skip
    rows = []
    for result in points:
        (curve,) = result.curves
        first, last = first_and_last(curve)
        published = DBA3C_SCORES[f"ALE/{result.point.name}-v5"]
        rows.append(
            (
                result.point.name, f"{first:,.1f}", f"{last:,.1f}", f"{best_mean_score(curve):,.1f}",
                "yes" if last - first >= LEAST_GAIN * abs(first) else "no",
                f"{curve.column('progress/frames')[-1] / 1e6:.1f}", f"{curve.column('progress/cpu_hours')[-1]:.2f}",
                "not published" if published is None else f"{published:g}",
            )
        )  # fmt: skip
    return markdown(columns, rows)


def write_page() -> None:
    """The table and the machine of README.md, from the runs beside it."""
    points = read_results(HERE).points
    renew(HERE / "README.md", made_by(points[0].curves[0].meta["lives"][0]), table(points))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, help="a finished study; without it one is run")
    options = parser.parse_args()
    if options.study is None:
        command = [sys.executable, "-m", "launch", *WORDS, "--into", str(STUDY), "--", *TRAIN]
        subprocess.run(command, check=True)
    for game in DBA3C_SCORES:
        shutil.rmtree(HERE / game.removeprefix("ALE/").removesuffix("-v5"), ignore_errors=True)
    commit_into(options.study or STUDY, HERE, every_s=10.0)
    write_page()
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
