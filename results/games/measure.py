"""DBA3C's six games and Pong, all with the same small budget of frames.

    python results/games/measure.py          (an hour on an idle machine of 2 cores; stopped, it goes on)
    python results/games/measure.py --study STUDY       (only reads a finished study)

Writes study.json and the runs (downsampled), README.md, and the figure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from dba3c.studies.curve import Curve
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


def row(result: PointResult) -> str:
    """A line of the table."""
    (curve,) = result.curves
    first, last = first_and_last(curve)
    published = DBA3C_SCORES[f"ALE/{result.point.name}-v5"]
    cells = (
        result.point.name,
        f"{first:,.1f}",
        f"{last:,.1f}",
        f"{best_mean_score(curve):,.1f}",
        f"{curve.column('progress/frames')[-1] / 1e6:.1f}",
        f"{curve.column('progress/cpu_hours')[-1]:.2f}",
        "not published" if published is None else f"{published:g}",
    )
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """README.md, from the runs beside it."""
    points = read_results(HERE).points
    life = points[0].curves[0].meta["lives"][0]
    source, made = life["source"], time.strftime("%Y-%m-%d", time.gmtime(life["started_s"]))
    table = "\n".join(row(point) for point in points)
    scores = {point.point.name: first_and_last(point.curves[0]) for point in points}
    unlearned = [name for name, (first, last) in scores.items() if last - first < LEAST_GAIN * abs(first)]
    return f"""# DBA3C's six games and Pong

    python results/games/measure.py

which runs `dba3c {" ".join(WORDS)} -- {" ".join(TRAIN)}`. {made}, commit {source.get("commit", "unknown")}\
{" (with changes)" if source.get("dirty") else ""}, {life["host"]["usable_cores"]} cores of {life["host"]["processor"]}.

![mean score of the last 50 games against frames](games.png)

| game | first 50 games | last 50 games | best mean of 50 | million frames | processor hours | DBA3C's score |
|---|---|---|---|---|---|---|
{table}

Not better than at the start by {LEAST_GAIN:.0%}: {", ".join(unlearned) or "none"}.

**Not DBA3C's scores reproduced**: each game was given a few minutes of two cores, which other work shared, where
DBA3C had 64 nodes of 12; one seed, the small network, the same hyperparameters for all games. The first 50 games are
nearly those of an agent that plays at random. Protocol: sticky actions off, whole games, unclipped scores; DBA3C's own
had random frame skips.
"""


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
    (HERE / "README.md").write_text(page(), encoding="utf-8")
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
