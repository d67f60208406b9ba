"""Draws data points/s against the number of backup workers, from stragglers.csv."""

from __future__ import annotations

import csv
from pathlib import Path

from dba3c.studies.figures import PALETTE, finish, new_figure, save

HERE = Path(__file__).resolve().parent


def main() -> None:
    with (HERE / "stragglers.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = new_figure()
    for index, exchange in enumerate(dict.fromkeys(row["exchange"] for row in rows)):
        for straggle, style in (("False", "--"), ("True", "-")):
            mine = [row for row in rows if row["exchange"] == exchange and row["stragglers"] == straggle]
            x = [float(row["backup"]) for row in mine]
            y = [float(row["data_points_per_s"]) for row in mine]
            label = f"{exchange}, {'stragglers' if straggle == 'True' else 'nobody late'}"
            axes.plot(x, y, style, marker="o", markersize=4, color=PALETTE[index], label=label)
    axes.set_ylim(bottom=0)
    finish(axes, "backup workers (8 gradients make an update)", "gradients that count / s", x)
    axes.legend(frameon=False, fontsize=8, handlelength=4)  # long enough to tell dashed from solid
    save(figure, HERE / "stragglers")


if __name__ == "__main__":
    main()
