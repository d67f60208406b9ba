"""Draws data points/s against the number of servers, and each step beside its bound, from exchange.csv."""

from __future__ import annotations

import csv
from pathlib import Path

from dba3c.studies.figures import IDEAL, PALETTE, finish, new_figure, save

HERE = Path(__file__).resolve().parent


def main() -> None:
    with (HERE / "exchange.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if float(row["rate_mbit"]) == 100.0]
    figure, axes = new_figure()
    for index, megabytes in enumerate(dict.fromkeys(row["megabytes"] for row in rows)):
        mine = [row for row in rows if row["megabytes"] == megabytes and row["exchange"] == "servers"]
        x = [float(row["servers"]) for row in mine]
        gradients = [1e3 * float(row["workers"]) / float(row["step_ms"]) for row in mine]
        bound = [1e3 * float(row["workers"]) / float(row["bound_ms"]) for row in mine]
        axes.plot(x, gradients, marker="o", color=PALETTE[index], label=f"{megabytes} MB, measured")
        axes.plot(x, bound, **{**IDEAL, "color": PALETTE[index], "label": f"{megabytes} MB, the wire's bound"})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    finish(axes, "parameter servers (8 workers, 100 Mbit/s per host)", "gradients/s", x)
    axes.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    save(figure, HERE / "servers")

    figure, axes = new_figure()
    names = [
        f"{'all-reduce' if row['exchange'] == 'allreduce' else 'k = ' + row['servers']}\n{row['megabytes']} MB"
        for row in rows
    ]
    axes.bar(range(len(rows)), [float(row["over_bound"]) for row in rows], color=PALETTE[0])
    axes.axhline(1.0, color="black", linestyle="--")
    axes.axhline(1.15, color=PALETTE[1], linestyle=":")
    axes.set_xticks(range(len(rows)), names, fontsize=7)
    axes.set_ylabel("step / lower bound")
    save(figure, HERE / "over_bound")


if __name__ == "__main__":
    main()
