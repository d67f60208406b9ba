"""Figures of `results/cluster`: a cluster of 64 nodes, time-dilated, from the rows that its campaign wrote."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dba3c.studies.figures import IDEAL, PALETTE, begin_y_at_zero, finish, new_figure, new_panels, save
from dba3c.studies.page import rows_of

RATE = "data points/s, time-dilated"
WAYS = ("4 servers", "a server beside every worker", "all-reduce (Gloo)", "majority", "4 servers, asynchronous")
"""Each has its own colour, the same in every figure."""
Row = dict[str, Any]
LIKE = {
    "1 server": ("4 servers", "v"),
    "2 servers": ("4 servers", "s"),
    "8 servers": ("4 servers", "D"),
    "all-reduce (MPI)": ("all-reduce (Gloo)", "^"),
    "all-reduce (Horovod)": ("all-reduce (Gloo)", "s"),
}
"""Have that one's colour and marks of their own."""


def newest(rows: Sequence[Row]) -> list[Row]:
    """Of rows with the same key the last one."""
    return list({row["key"]: row for row in rows}.values())


def read(folder: Path) -> list[Row]:
    """Of a campaign the newest rows; beside them what could only be measured on too busy a machine, the least busy try
    of each."""
    kept = newest(rows_of(folder / "rows.jsonl"))
    known = {row["key"] for row in kept}
    refused = sorted(rows_of(folder / "refused.jsonl"), key=lambda row: -row["own_share"])
    busy = {row["key"]: row for row in refused}
    return [*kept, *(row for key, row in busy.items() if key not in known)]


def way(row: Mapping[str, Any]) -> str:
    """How a row exchanges its gradients, for people."""
    if row["exchange"] == "central":
        return f"a learner worth {row['learner_cores']:g} core{'s' if row['learner_cores'] > 1 else ''}"
    if row["colocated"]:
        every = row["servers"] == row["workers"]
        return "a server beside every worker" if every else f"{row['servers']} servers beside workers"
    if row["exchange"] == "servers":
        return f"{row['servers']} server{'s' if row['servers'] > 1 else ''}"
    names = {"allreduce": "all-reduce (Gloo)", "async": f"{row['servers']} servers, asynchronous"}
    return names.get(row["exchange"], str(row["exchange"]))


def draw(folder: Path) -> None:
    """Data points/s against workers, servers and backup workers, the simulator beside each; throughput over time."""
    rows = read(folder)
    for network, gbit in dict.fromkeys((row["network"], row["gbit"]) for row in rows if row["part"] == "workers"):
        mine = [row for row in rows if row["part"] == "workers" and (row["network"], row["gbit"]) == (network, gbit)]
        _draw_workers(folder, mine)
        _draw_servers(folder, mine)
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        _draw_backup(folder, [row for row in mine if row["part"] == "backup"])
        _draw_central(folder, [row for row in mine if row["part"] == "central"], mine)
    _draw_faults(folder, [row for row in rows if row["part"] == "faults"])


def _name(rows: Sequence[Row]) -> tuple[str, str]:
    """For files and for people."""
    network, gbit = rows[0]["network"], rows[0]["gbit"]
    return f"{network}_{gbit:g}gbit", f"{network} network, {gbit:g} Gbit/s"


def _draw_workers(folder: Path, rows: Sequence[Row]) -> None:
    numbers = {way(row): {other["workers"] for other in rows if way(other) == way(row)} for row in rows}
    scaled = [row for row in rows if len(numbers[way(row)]) > 2]  # one or two points are no line
    every_n = sorted({row["workers"] for row in scaled})
    if len(every_n) < 3:
        return
    file, people = _name(rows)
    figure, axes = new_figure()
    _draw_lines(axes, scaled, "workers")
    alone = min(scaled, key=lambda row: (row["workers"], -row["data_points_per_s"]))
    ideal = [alone["data_points_per_s"] * n / alone["workers"] for n in every_n]
    told = "theoretical, from the single worker" if alone["workers"] == 1 else "theoretical, from the fewest workers"
    axes.plot(every_n, ideal, label=told, **IDEAL)
    finish(axes, f"workers of 12 cores ({people}, {_dilations(scaled)})", RATE, every_n, log=True)
    save(figure, folder / f"workers_{file}")


def _draw_servers(folder: Path, rows: Sequence[Row]) -> None:
    most = max(row["workers"] for row in rows)
    of_servers = [row for row in rows if row["exchange"] == "servers" and row["workers"] == most]
    sharded = [row for row in of_servers if not row["colocated"]]
    if len(sharded) < 3:  # two points are a table
        return
    file, people = _name(rows)
    figure, axes = new_figure()
    _draw_lines(axes, sharded, "servers", "dedicated servers")
    for row in of_servers:
        if row["colocated"]:
            told = f"a server beside every worker ({row['servers']})"
            axes.axhline(row["data_points_per_s"], color=PALETTE[1], linestyle="--", linewidth=1.2, label=told)
    axes.set_xscale("log", base=2)
    begin_y_at_zero(axes)
    every_k = [row["servers"] for row in sharded]
    axes.set_title(f"{most} workers, {people}, {_dilations(of_servers)}", fontsize=9)
    finish(axes, "parameter servers", RATE, every_k)
    save(figure, folder / f"servers_{file}")


def _draw_backup(folder: Path, rows: Sequence[Row]) -> None:
    if len({row["backup"] for row in rows}) < 3:
        return
    file, people = _name(rows)
    figure, axes = new_figure()
    _draw_lines(axes, rows, "backup")
    begin_y_at_zero(axes)
    axes.set_title(f"log-normal stragglers, {people}, {_dilations(rows)}", fontsize=9)
    finish(axes, f"backup workers of {rows[0]['workers']}", RATE, [row["backup"] for row in rows])
    save(figure, folder / f"backup_{file}")


def _draw_central(folder: Path, rows: Sequence[Row], others: Sequence[Row]) -> None:
    """Against what the learner's node is worth; as many workers beside it."""
    if len({row["learner_cores"] for row in rows}) < 3:
        return
    network, nodes = rows[0]["network"], rows[0]["workers"]
    figure, axes = new_figure()
    told_apart = [{**row, "exchange": f"central inference, {row['gbit']:g} Gbit/s"} for row in rows]
    _draw_lines(axes, told_apart, "learner_cores")
    for index, gbit in enumerate(dict.fromkeys(row["gbit"] for row in rows)):
        of = ("workers", gbit, nodes)
        beside = [row for row in others if (row["part"], row["gbit"], row["workers"]) == of]
        if beside:
            best = max(beside, key=lambda row: row["data_points_per_s"])
            told = f"workers, {way(best)}, {gbit:g} Gbit/s"
            look: dict[str, Any] = {"color": PALETTE[index], "linestyle": "--", "linewidth": 1.2}
            axes.axhline(best["data_points_per_s"], label=told, **look)
    axes.set_title(f"{nodes} nodes of actors, {network} network, {_dilations(rows)}", fontsize=9)
    finish(axes, "cores that the learner is worth", RATE, [row["learner_cores"] for row in rows], log=True)
    save(figure, folder / f"central_{network}")


def _draw_faults(folder: Path, rows: Sequence[Row]) -> None:
    """A panel for each event: steps that were taken since it happened, as worker 0 saw them."""
    if not rows:
        return
    kinds = list(dict.fromkeys(row["fault"] for row in rows))
    ways = list(dict.fromkeys(way(row) for row in rows))
    figure, panels = new_panels(len(kinds), 3, 3.0, "seconds of the cluster since it happened (time-dilated)", "steps")
    for axes, kind in zip(panels, kinds, strict=True):
        for row in rows:
            if row["fault"] != kind:
                continue
            told = f"{way(row)}, b = {row['backup']}, ×{row['dilation']}"
            times_s = [at_ms / 1e3 for at_ms, _ in row["through_ms"]]
            since = next(step for at_ms, step in reversed(row["through_ms"]) if at_ms <= 0)
            steps = [step - since for _, step in row["through_ms"]]
            colour = PALETTE[_place(way(row), ways.index(way(row)))]
            axes.step(times_s, steps, where="post", color=colour, label=told)
            if row["ended"] != "measured":
                axes.plot(times_s[-1], steps[-1], "x", color=colour, markersize=9)
        axes.axvline(0.0, **IDEAL)
        ended = any(row["fault"] == kind and row["ended"] != "measured" for row in rows)
        axes.set_title(f"{kind}{' (× the run ended)' if ended else ''}", fontsize=9)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper left", fontsize=7, framealpha=1, edgecolor="none")
    save(figure, folder / "faults")


def _place(name: str, otherwise: int = 0) -> int:
    """Of a way among all; `otherwise` of anything else."""
    name = LIKE[name][0] if name in LIKE else name
    return WAYS.index(name) if name in WAYS else otherwise


def _draw_lines(axes: Axes, rows: Sequence[Row], x: str, label: str | None = None) -> None:
    """Marks where it was measured, hollow ones on too busy a machine; a thin dotted line where it was simulated. Two
    points are not joined."""
    of_way: dict[str, list[Row]] = {}
    for row in rows:
        of_way.setdefault(label or way(row), []).append(row)
    for index, name in enumerate(sorted(of_way, key=lambda name: (_place(name), name))):
        mine = sorted(of_way[name], key=lambda row: row[x])
        places, rates = [row[x] for row in mine], [row["data_points_per_s"] for row in mine]
        colour, line = PALETTE[_place(name, index)], "-" if len(mine) > 2 else "none"
        axes.plot(
            places, rates, marker=LIKE[name][1] if name in LIKE else "o", color=colour, label=name, linestyle=line
        )
        for place, rate, row in zip(places, rates, mine, strict=True):
            if row["refused"]:
                axes.plot(place, rate, marker="o", markerfacecolor="white", color=colour)
        guessed = [row for row in mine if "predicted_ms" in row]
        simulated = [row["data_points_per_s"] * row["step_ms"] / row["predicted_ms"] for row in guessed]
        look: dict[str, Any] = {"linewidth": 0.9} if len(guessed) > 2 else {"linestyle": "none", "marker": "_"}
        axes.plot([row[x] for row in guessed], simulated, **{"linestyle": ":", "color": colour} | look)
    if any(row["refused"] for row in rows):
        hollow: dict[str, Any] = {"color": "gray", "markerfacecolor": "white", "linestyle": "none"}
        axes.plot([], [], marker="o", label="on too busy a machine: not counted", **hollow)
    mark: dict[str, Any] = {"marker": "_"} if all(len(mine) < 3 for mine in of_way.values()) else {}
    axes.plot([], [], ":", linewidth=0.9, color="black", label="SIMULATED, before it was measured", **mark)


def _dilations(rows: Sequence[Row]) -> str:
    every = sorted({row["dilation"] for row in rows})
    return f"time-dilated ×{every[0]:g}" + (f" to ×{every[-1]:g}" if len(every) > 1 else "")
