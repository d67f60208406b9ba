"""The tables of README.md, from the rows that measure.py wrote."""

from __future__ import annotations

from typing import Any

import numpy as np

from dba3c.studies.page import markdown


def way(row: dict[str, Any]) -> str:
    """How a row exchanges its gradients, for people."""
    if row["colocated"]:
        return "a server beside every worker"
    if row["exchange"] == "servers":
        return f"{row['servers']} server{'s' if row['servers'] > 1 else ''}"
    names = {"allreduce": "all-reduce (Gloo)", "async": f"{row['servers']} servers, asynchronous"}
    return names.get(row["exchange"], row["exchange"])


def with_marked(rows: list[dict[str, Any]], refused: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What could only be measured on too busy a machine stands beside the rest, the least busy try of each."""
    busy = {row["key"]: row for row in sorted(refused, key=lambda row: -row["own_share"])}
    return [*rows, *(row for key, row in busy.items() if key not in {row["key"] for row in rows})]


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Of README.md: how the method agrees with itself, all rows, the peers, how near the simulator was."""
    columns = (
        "network",
        "Gbit/s",
        "exchange",
        "n",
        "b",
        "D",
        "compute, ms",
        "bound, ms",
        "step, ms",
        "predicted",
        "error",
    )
    more = ("data points/s", "dropped", "busy", "server's cores")
    order = {"servers": 0, "async": 1, "allreduce": 2, "majority": 3}
    shown = sorted(
        (row for row in rows if row["part"] in ("workers", "backup")),
        key=lambda r: (
            r["part"],
            r["network"],
            r["gbit"],
            order[r["exchange"]],
            r["colocated"],
            r["servers"],
            r["workers"],
        ),
    )
    main_rows = [_cells(row) for row in shown]
    of_method = sorted(
        (row for row in rows if row["part"] == "method"),
        key=lambda row: (row["exchange"], row["workers"], row["dilation"]),
    )
    method = [
        (
            way(row), row["workers"], f"{row['gbit']:g}", _dilation(row), row["step_ms"], row["predicted_ms"],
            f"{row['own_share']:.0%}",
        )
        for row in of_method
    ]  # fmt: skip
    of_peers = sorted(
        (row for row in rows if row["part"] == "peers"),
        key=lambda row: (row["megabytes"], row["workers"], row["slow"], -row["data_points_per_s"]),
    )
    peers = [
        (
            way(row), row["workers"], row["backup"], f"{row['megabytes']:g}", "yes" if row["slow"] > 1 else "no",
            _dilation(row), row["step_ms"], f"{row['data_points_per_s']:,.0f}", f"{row['own_share']:.0%}",
        )
        for row in of_peers
    ]  # fmt: skip
    errors = [
        abs(row["error"]) for row in rows if row["part"] != "calibration" and "error" in row and not row["refused"]
    ]
    near = [
        (f"{sum(error <= 0.1 for error in errors)} of {len(errors)}", f"{np.mean(errors):.1%}", f"{max(errors):.1%}")
    ]
    return [
        markdown((*columns, *more), main_rows),
        markdown(("exchange", "n", "Gbit/s", "D", "step, ms", "predicted", "busy"), method),
        markdown(("exchange", "n", "b", "MB", "straggler", "D", "step, ms", "data points/s", "busy"), peers),
        markdown(("rows within 10 %", "mean error", "worst"), near),
    ]


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    network = row["network"] + (f", σ {row['tail']:g}" if row["tail"] else "")
    times = (f"{row[name]:.1f}" for name in ("slowest_compute_ms", "bound_ms", "step_ms", "predicted_ms"))
    rate, shares = f"{row['data_points_per_s']:,.0f}", (f"{row['dropped_share']:.1%}", f"{row['own_share']:.0%}")
    cores = "–" if row["server_cores"] is None else f"{row['server_cores']:.1f}"
    who = (network, f"{row['gbit']:g}", way(row), row["workers"], row["backup"])
    return (*who, _dilation(row), *times, f"{row['error']:+.1%}", rate, *shares, cores)


def _dilation(row: dict[str, Any]) -> str:
    return f"{row['dilation']} †" if row["refused"] else str(row["dilation"])
