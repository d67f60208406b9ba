"""Draws the learning curve of each game from the runs beside it: python results/games/plot.py."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dba3c.studies.figures import PALETTE, save
from dba3c.studies.results import read_results
from dba3c.studies.study import DBA3C_SCORES

HERE = Path(__file__).resolve().parent
COLUMNS = 4


def main() -> None:
    """Small multiples: their scores share no axis."""
    points = read_results(HERE).points
    rows = -(-len(points) // COLUMNS)
    figure = Figure(figsize=(10.0, 2.3 * rows), layout="constrained")
    for place, result in enumerate(points, start=1):
        axes = figure.add_subplot(rows, COLUMNS, place)
        (curve,) = result.curves
        known = curve.column("progress/games") >= 50
        frames, score = curve.column("progress/frames")[known], curve.column("score/mean")[known]
        axes.plot(frames, score, color=PALETTE[0], linewidth=1.4)
        published = DBA3C_SCORES[f"ALE/{result.point.name}-v5"]
        told = "not published" if published is None else f"{published:g}"
        axes.set_title(f"{result.point.name} (DBA3C: {told})", fontsize=9)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("frames", fontsize=9)
    figure.supylabel("mean score of the last 50 games", fontsize=9)
    save(figure, HERE / "games")


if __name__ == "__main__" and (HERE / "study.json").exists():
    main()
