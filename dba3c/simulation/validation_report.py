"""What `dba3c.benchmarks.simulator_validation` found, as a figure and a page. Everything is read from its two files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from dba3c.errors import UserError
from dba3c.studies.plots.style import PALETTE, new_figure, save

TOLERANCE = 0.1
_COLUMNS = ("part", "workers", "servers", "backup", "megabytes", "steps", "measured_ms", "predicted_ms")
_MARKERS = ("o", "s", "^")


def read(folder: Path) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The rows of validation.csv and the tree of validation.json. Raises UserError when they are not there."""
    try:
        with (folder / "validation.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return rows, json.loads((folder / "validation.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no validation of the simulator: {error}") from error


def draw(folder: Path) -> list[Path]:
    """Predicted against measured, with the band of 10 %: validation.png and .svg."""
    rows = [row for row in read(folder)[0] if row["part"] == "validation"]
    figure, axes = new_figure()
    for backup in sorted({int(row["backup"]) for row in rows}):
        mine = [row for row in rows if int(row["backup"]) == backup]
        x, y = [float(row["measured_ms"]) for row in mine], [float(row["predicted_ms"]) for row in mine]
        colour, marker = PALETTE[backup % len(PALETTE)], _MARKERS[backup % len(_MARKERS)]
        axes.plot(x, y, linestyle="", marker=marker, color=colour, markerfacecolor="white", label=f"b = {backup}")
    _name_points(axes, rows)
    ends = [
        0.85 * min(float(row["measured_ms"]) for row in rows),
        1.15 * max(float(row["measured_ms"]) for row in rows),
    ]
    axes.plot(ends, ends, color="#555555", linewidth=0.9)
    low, high = ([(1 + sign * TOLERANCE) * end for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color="#555555", alpha=0.15, linewidth=0, label="within 10 %")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured: ms a step (n workers + k servers)")
    axes.set_ylabel("SIMULATED: ms a step")
    axes.legend(frameon=False, fontsize=8)
    return save(figure, folder / "validation")


def _name_points(axes: Axes, rows: list[dict[str, str]]) -> None:
    """n+k beside each mark, below and above the line in turn, so that neighbours do not overlap."""
    for order, row in enumerate(sorted(rows, key=lambda row: float(row["measured_ms"]))):
        right = order % 2 == 0
        axes.annotate(
            f"{row['workers']}+{row['servers']}",
            (float(row["measured_ms"]), float(row["predicted_ms"])),
            textcoords="offset points",
            xytext=(5, -5) if right else (-5, 3),
            ha="left" if right else "right",
            fontsize=6,
        )


def page(folder: Path) -> str:
    """The text of validation.md."""
    rows, facts = read(folder)
    errors = [abs(float(row["error"])) for row in rows if row["part"] == "validation"]
    within = sum(error <= TOLERANCE for error in errors)
    fitted, host, compute = facts["calibrated"], facts["host"], facts["compute"]
    lines = [
        "# The simulator against measured steps",
        "",
        f"**{within} of {len(errors)} points within 10 %**, mean error {sum(errors) / len(errors):.1%}, "
        f"worst {max(errors):.1%}.",
        "",
        f"    {facts['command']}",
        "",
        f"{facts['date']}, commit {facts.get('commit', 'unknown')}{' (with changes)' if facts.get('dirty') else ''}, "
        f"{host['usable_cores']} cores of {host['processor']}.",
        "",
        "![predicted against measured](validation.png)",
        "",
        "Each server and worker is a process in a network namespace of its own,",
        f"{facts['rate_mbit']:g} Mbit/s in each direction; the exchange is the real one. Workers sleep for times",
        "drawn from what a run of Breakout on this machine needed for a gradient",
        f"(mean {1e3 * compute['mean_s']:.0f} ms, standard deviation {compute['variation']:.0%}),",
        f"{compute['straggler_probability']:.0%} of them",
        f"{compute['straggler_slowdown']:g} times as long. The model is given the same times.",
        "",
        "Fitted to the calibration points alone, which compute nothing: latency",
        f"{1e6 * fitted['latency_s']:.0f} µs, a coordinator's message {1e6 * fitted['message_s']:.0f} µs,",
        f"{fitted['wire_efficiency']:.1%} of the bytes on the wire are tensors,",
        f"{fitted['overlap_lost']:.0%} of the overlap of pushing and pulling lost to unfair links; with backup",
        f"workers, the logarithm of a flow's share has a standard deviation of {fitted['link_unfairness']:.2f} √n.",
        "",
        "| | n | k | b | MB | steps | measured ms | predicted ms | error | dropped | predicted |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row[name] for name in _COLUMNS]
        shares = (f"{float(row[name]):.1%}" for name in ("measured_dropped", "predicted_dropped"))
        lines.append("| " + " | ".join([*cells, f"{float(row['error']):+.1%}", *shares]) + " |")
    return "\n".join(lines) + "\n"
