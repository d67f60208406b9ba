"""Draws DBA3C's two plots from what measure.py left: measured points filled, simulated ones dotted and hollow."""

from __future__ import annotations

import json
from pathlib import Path

from dba3c.studies.figures import IDEAL, draw_measured, draw_simulated, finish, new_figure, save
from dba3c.studies.results import data_points_per_s, each, read_results

HERE = Path(__file__).resolve().parent
DATA_POINTS_TO_300 = 4_219_196


def main() -> None:
    tables = json.loads((HERE / "simulated.json").read_text(encoding="utf-8"))
    measured = each(read_results(HERE / "study").points, data_points_per_s)
    rates = dict.fromkeys(gbit for gbit, _, _ in tables["workers"])
    for name, y_name in (("speed", "data points/s"), ("time_to_300", "minutes to a mean score of 300")):
        figure, axes = new_figure()
        minutes = name == "time_to_300"
        if not minutes:
            draw_measured(axes, measured, "on two cores")
        for index, gbit in enumerate(rates, start=1):
            mine = [(n, rate) for of, n, rate in tables["workers"] if of == gbit]
            x = [n for n, _ in mine]
            y = [DATA_POINTS_TO_300 / rate / 60 if minutes else rate for _, rate in mine]
            draw_simulated(axes, x, y, f"{gbit:g} Gbit/s", index)
        ideal = [y[0] / n if minutes else y[0] * n for n in x]
        axes.plot(x, ideal, label="theoretical", **IDEAL)
        finish(axes, "workers", y_name, x, log=True)
        save(figure, HERE / name)
    figure, axes = new_figure()
    for index, gbit in enumerate(rates, start=1):
        mine = [(k, rate) for of, k, rate in tables["servers"] if of == gbit]
        draw_simulated(axes, [k for k, _ in mine], [rate for _, rate in mine], f"{gbit:g} Gbit/s", index)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    finish(
        axes, "parameter servers (64 workers, one-core hosts)", "data points/s", [k for _, k, _ in tables["servers"]]
    )
    save(figure, HERE / "servers")


if __name__ == "__main__" and (HERE / "simulated.json").exists():
    main()
