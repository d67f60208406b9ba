"""One worker of two lanes beside two workers with servers, beside two in one process' exchange, beside one lane alone.

    python results/lanes/measure.py          (about 25 minutes on an idle machine of 2 cores)

Real `dba3c train` runs of Breakout in turn, ROUNDS times; agent steps/s (`throughput.run`) of each. Appends to
rows.jsonl. Then what the adding up takes (`param_servers.benchmarks.lanes`), to reduction.jsonl. Writes the tables of
README.md from both.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from throughput.measure import run

from dba3c.studies.page import add_row, facts, made_by, markdown, renew, rows_of

HERE = Path(__file__).resolve().parent
NETWORKS = ["small:bfloat16", "small:float32", "nature:bfloat16", "nature:float32"]
WAYS = {
    "one lane": "--exchange local --workers 1 --lanes 1 --envs-per-worker {half}",
    "two runs of one lane at once": "--exchange local --workers 1 --lanes 1 --envs-per-worker {half}",
    "one worker, two lanes": "--exchange local --workers 1 --lanes 2 --envs-per-worker {all}",
    "two workers, two servers": "--exchange servers --workers 2 --servers 2 --lanes 1 --envs-per-worker {half}",
    "two lanes, one server": "--exchange servers --workers 1 --servers 1 --lanes 2 --envs-per-worker {all}",
}


def together(words: list[str], runs: int) -> float:
    """Agent steps/s of as many runs at once, that know nothing of each other: what the machine has for any way to share
    them."""
    with ThreadPoolExecutor(runs) as pool:
        return sum(found["agent_steps_per_s"] for found in pool.map(run, [[*words, "--track"]] * runs))


def write_page(made: str) -> None:
    """The table: medians of the rounds, and of the ratios to one lane within each round."""
    rounds: dict[tuple[Any, ...], list[dict[str, float]]] = defaultdict(list)
    for row in rows_of(HERE / "rows.jsonl"):
        shape = (row["processor"], row["network"], row["precision"], row["envs"])
        rounds[(*shape, row.get("commit"))].append(row["agent_steps_per_s"])
    table = []
    for (processor, network, precision, envs, _), rows in rounds.items():
        cells = [processor, f"{network}, {precision}", str(envs), str(len(rows))]
        for way in WAYS:
            measured = [row for row in rows if way in row]
            ratio = statistics.median([row[way] / row["one lane"] for row in measured] or [math.nan])
            rate = statistics.median([row[way] for row in measured] or [math.nan])
            cells.append(f"{rate:,.0f} ({ratio:.2f})" if measured else "–")
        table.append(cells)
    speed = markdown(["2 cores of", "network", "environments a core", "rounds", *WAYS], table)
    reduced = rows_of(HERE / "reduction.jsonl")
    sizes = sorted({row["megabytes"] for row in reduced})
    sums: list[list[object]] = []
    for lanes in sorted({row["lanes"] for row in reduced}):
        mine = {row["megabytes"]: row for row in reduced if row["lanes"] == lanes}
        sums.append([lanes, *(f"{mine[mb]['step_ms']:.2f} ({mine[mb]['memory_share']:.0%})" for mb in sizes)])
    reduction = markdown(["lanes", *(f"{mb:g} MB" for mb in sizes)], sums)
    renew(HERE / "README.md", made, speed, reduction)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--envs", type=int, default=16, help="environments a core")
    options = parser.parse_args()
    made = facts("python results/lanes/measure.py")
    where = {"processor": made["host"]["processor"], "date": made["date"], "commit": made["source"]["commit"][:12]}
    for _ in range(options.rounds):
        for network, precision in (each.split(":") for each in options.networks):
            row = {}
            for way, shape in WAYS.items():
                words = shape.format(half=options.envs, all=2 * options.envs).split()
                words += ["--network", network, "--precision", precision]
                row[way] = together(words, 2 if way.startswith("two runs") else 1)
                print(network, precision, way, f"{row[way]:,.0f}", flush=True)
            case = {"network": network, "precision": precision, "envs": options.envs}
            add_row(HERE / "rows.jsonl", {**where, **case, "agent_steps_per_s": row})
    command = [sys.executable, "-m", "param_servers.benchmarks.lanes"]
    reduction = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    (HERE / "reduction.jsonl").write_text(reduction)
    write_page(made_by(made))


if __name__ == "__main__":
    main()
