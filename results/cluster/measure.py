"""The 64-node cluster by time dilation, row by row: `python results/cluster/measure.py` (root, idle machine).

The rows of plan.py that rows.jsonl lacks, in the plan's order. It may be interrupted, or run in pieces (`--for-s 270`);
`--list` says what is missing and how long it takes. What the simulator predicts for a row is computed from the
calibration (N ≤ 4, no compute) before the row is measured, and written with it. A row whose processes took more than
60 % of the machine, or one of them half a core, goes to refused.jsonl, and is tried slower; one beside which other work
took more than 20 %, too, and is tried again. A row that is measured again counts instead of the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import central_lab
import lab
import numpy as np
import torch
from figures import newest
from other_systems import PEERS
from over_launchers import LAUNCHED
from plan import (
    MOST_EXPECTED,
    MOST_OTHERS,
    SEED,
    STEP_TIMEOUT_S,
    STEPS_AFTER,
    STEPS_BEFORE,
    CentralRow,
    Row,
    everything,
    is_calibration,
    megabytes,
)
from predicted import CALIBRATED, FAMILY, ROWS, calibrate, predicted

from dba3c.runs import host_facts
from dba3c.simulation.cluster import Cluster
from dba3c.studies.page import add_row, facts, rows_of
from param_servers.errors import ConfigError, PeerLost, told

HERE = Path(__file__).resolve().parent
REFUSED = HERE / "refused.jsonl"
MOST_TRIES = 3
"""On too busy a machine: at slower links a byte costs more processor time, packet by packet, so a row may never be slow
enough."""
HOROVOD_JOIN_S = 0.07
"""For each pair of ranks, on two cores."""
ALONE_DILATION = 40
"""Of one worker: at D = 5 what the processors take themselves, which nobody slows, was an eighth of its step."""


def missing(only: list[str]) -> list[Row | CentralRow]:
    """What is not measured (with the compute times that are recorded now), in the plan's order, but for rows that were
    tried too often on too busy a machine.

    Args: only: parts of keys, of which a row's has one.
    """
    done = {(row["key"], row.get("compute_ms")) for row in rows_of(ROWS) if serves_here(row)}
    busy = (row for row in rows_of(REFUSED) if lab.too_busy(row))  # beside other work is no try
    tried = [(row["key"], row.get("compute_ms")) for row in busy if serves_here(row)]
    asked = ((row, (row.key, row.compute_ms())) for row in everything() if any(part in row.key for part in only))
    return [row for row, key in asked if key not in done and tried.count(key) < MOST_TRIES]


def serves_here(row: dict[str, Any]) -> bool:
    """What a machine is like is asked of each."""
    host = host_facts.host()
    return not is_calibration(row) or (row["processor"], row.get("cores")) == (host["processor"], host["usable_cores"])


def least_dilation(refused: list[dict[str, Any]], key: str) -> int:
    """Twice the D at which this row kept the machine too busy; 0: none did."""
    tried = (row for row in refused if row["key"] == key and lab.too_busy(row))
    return max((int(2 * row["dilation"]) for row in tried), default=0)


def gradient(parameters: int) -> torch.Tensor:
    """Of the size and about the values of a real one: clipped to a norm of 0.5."""
    drawn = torch.randn(parameters, generator=torch.Generator().manual_seed(SEED))
    return 0.5 * drawn / drawn.norm()


class Prepared(NamedTuple):
    """How a row will be measured."""

    dilation: int
    steps: int
    will_take_s: float


def prepare(row: Row | CentralRow, seconds: float) -> Prepared:
    """Args: seconds: that are measured. Raises ConfigError where the machine cannot hold the row."""
    cores, least = os.cpu_count() or 1, least_dilation(rows_of(REFUSED), row.key)
    if isinstance(row, CentralRow):
        dilation = max(central_lab.choose_dilation(row.scene, cores), least)
        update_s = row.scene.points_per_update / central_lab.predicted_points_per_s(row.scene, row.costs())
        updates = max(4, min(30, round(seconds / (dilation * update_s))))
        return Prepared(dilation, updates, 4 + 0.3 * row.scene.actors + (updates + 4) * dilation * update_s)
    if row.scene.workers == 1:
        least = max(least, ALONE_DILATION)
    times_s = row.times_s()
    slowest_s = float(np.sort(times_s, axis=1)[:, row.scene.gradients - 1].mean())
    dilation = row.dilation or lab.choose_dilation(row.scene, slowest_s, cores, least)
    most = lab.MOST_BUSY if row.dilation is None else MOST_EXPECTED
    most = most if row.network else float("inf")  # without compute the wire alone is asked
    lab.check_machine(row.scene, slowest_s, dilation, cores, host_facts.available_memory_bytes() / 2**20, most)
    guess_s = slowest_s + 1.1 * row.scene.bound_s + 1e-3
    if row.scene.exchange == "async":
        guess_s = max(guess_s, float(times_s.mean()))
    steps = lab.steps_within(seconds if row.network else seconds / 4, guess_s, dilation)
    waits_s = 0.0
    if (fault := row.fault_at(dilation)) is not None:
        steps = STEPS_BEFORE + STEPS_AFTER
        slow_s = 0.0 if row.scene.servers else 9 * STEPS_AFTER * dilation * row.scene.bound_s
        waits_s = {"dead server": fault.replaced_s, "unplugged host": STEP_TIMEOUT_S, "slow host": slow_s}[fault.kind]
    processes = row.scene.workers + row.scene.servers
    start_s = 4 + (0.15 if row.scene.servers else 0.5) * processes
    if "Horovod" in row.scene.exchange:
        start_s += HOROVOD_JOIN_S * row.scene.workers**2
    return Prepared(dilation, steps, start_s + (steps + 4) * dilation * guess_s + waits_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for-s", type=float, default=float("inf"), help="begin no row that would end later")
    parser.add_argument("--row-s", type=float, default=12.0, help="that is measured of each row")
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose key (see --list) has one of these in it")
    parser.add_argument("--list", action="store_true", help="measure nothing: what is missing, and how long it takes")
    options = parser.parse_args()
    if options.list:
        print("\n".join(listed(options.row_s, options.only)))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that a row's processes and hosts are removed
        try:
            lab.check_privileges()
            if not lab.take_priority():
                print("no real-time priority here: what else runs takes its share, and rows say how much", flush=True)
            campaign(time.monotonic() + options.for_s, options.row_s, options.only)
        except (ConfigError, OSError) as error:  # OSError: root without the right to make networks, as in a container
            sys.exit(f"error: {error}")


def listed(row_s: float, only: list[str]) -> list[str]:
    """A line for each row that is missing, with the seconds that it will take, and their sum so far."""
    took_s = {row["key"]: row["row_s"] for row in rows_of(ROWS)}
    sum_s, lines = 0.0, []
    for row in missing(only):
        try:
            prepared = prepare(row, row_s)
        except ConfigError as error:
            lines.append(f"   –            {row.key}: {error}")
            continue
        will_take_s = took_s.get(row.key, prepared.will_take_s)
        sum_s += will_take_s
        lines.append(f"{will_take_s:5.0f} s {sum_s / 60:5.0f} min  D = {prepared.dilation:3d}  {row.key}")
    return lines


def campaign(until_s: float, row_s: float, only: list[str]) -> None:
    """All rows that are missing and fit into the time."""
    torch.set_num_threads(1)
    clusters: dict[str, Cluster] = {}
    made = facts("python results/cluster/measure.py")  # now: a campaign of hours outlives the commit it was begun at
    host = made["host"]
    here = {**made["source"], "processor": host["processor"], "cores": host["usable_cores"]}
    for row in missing(only):
        if row.part != "calibration" and not clusters:
            clusters = calibrate(newest([line for line in rows_of(ROWS) if serves_here(line)]))
            CALIBRATED.write_text(json.dumps({k: asdict(v) for k, v in clusters.items()}, indent=1) + "\n")
        try:
            prepared = prepare(row, row_s)
        except ConfigError as error:
            print(f"{row.key} cannot be measured here: {error}", flush=True)
            continue
        if time.monotonic() + prepared.will_take_s > until_s:
            print(f"no time for {row.key}: {prepared.will_take_s:.0f} s", flush=True)
            continue
        try:
            found = central(row, prepared) if isinstance(row, CentralRow) else measured(row, prepared, clusters)
        except PeerLost as error:
            print(f"FAILED {row.key}: {told(error)}", flush=True)
            continue
        (HERE / "meta.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        line = {"key": row.key, "part": row.part, "network": row.network, **found, "date": made["date"], **here}
        if "predicted_ms" in line:
            line["error"] = round(line["predicted_ms"] / line["step_ms"] - 1, 4)
        is_busy = line["refused"] and not is_calibration(line)
        refused = line["refused"] = is_busy or line["others_share"] > MOST_OTHERS
        add_row(REFUSED if refused else ROWS, line)
        shown = ("exchange", "workers", "servers", "backup", "megabytes", "gbit", "dilation", "steps", "step_ms")
        more = ("predicted_ms", "error", "bound_ms", "slowest_compute_ms", "own_share", "busy_share", "row_s")
        told_of = " ".join(f"{name}={line.get(name)}" for name in (*shown, *more))
        print(("REFUSED " if refused else "") + told_of, flush=True)


def measured(row: Row, prepared: Prepared, clusters: dict[str, Cluster]) -> dict[str, Any]:
    """One line of rows.jsonl; what was predicted is computed first. Raises PeerLost when the row's processes fail."""
    dilation, steps, _ = prepared
    prediction = {}
    if clusters and row.scene.exchange in FAMILY and row.fault is None:
        prediction = predicted(clusters, row, dilation, steps)
    values, others = gradient(row.scene.case(1, 1).numel), (PEERS | LAUNCHED).get(row.scene.exchange)
    found = lab.measure(row.scene, row.times_s(), dilation, steps, row.points, values, others, row.fault_at(dilation))
    return {"tail": row.tail, "slow": row.slow, **found, **prediction}


def central(row: CentralRow, prepared: Prepared) -> dict[str, Any]:
    """As `measured`, of central inference."""
    scene, costs = row.scene, row.costs()
    rate = central_lab.predicted_points_per_s(scene, costs)
    found = central_lab.measure(scene, costs, prepared.dilation, prepared.steps)
    as_others = {"exchange": "central", "workers": scene.actors, "servers": 1, "backup": 0, "colocated": False}
    size = {"megabytes": megabytes(row.network), "steps": prepared.steps}
    return {**as_others, **size, **found, "predicted_ms": round(1e3 * scene.points_per_update / rate, 3)}


if __name__ == "__main__":
    main()
