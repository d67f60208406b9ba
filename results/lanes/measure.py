"""One worker of two lanes beside two workers with servers, beside two in one process' exchange, beside one lane alone.

    python results/lanes/measure.py          (about 25 minutes on an idle machine of 2 cores)

Real `dba3c train` runs of Breakout in turn, ROUNDS times; agent steps/s of the last SECONDS of each. Appends to
rows.jsonl. Then what the adding up takes (`param_servers.benchmarks.lanes`), to reduction.jsonl. Writes the tables of
README.md from both.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dba3c.metrics.reader import whole_run
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import add_row, facts, made_by, markdown, renew, rows_of

HERE = Path(__file__).resolve().parent
SECONDS, WARM_UP_S = 15.0, 8.0
NETWORKS = ["small:bfloat16", "small:float32", "nature:bfloat16", "nature:float32"]
WAYS = {
    "one lane": "--exchange local --workers 1 --lanes 1 --envs-per-worker {half}",
    "two runs of one lane at once": "--exchange local --workers 1 --lanes 1 --envs-per-worker {half}",
    "one worker, two lanes": "--exchange local --workers 1 --lanes 2 --envs-per-worker {all}",
    "two workers, two servers": "--exchange servers --workers 2 --servers 2 --lanes 1 --envs-per-worker {half}",
    "two lanes, one server": "--exchange servers --workers 1 --servers 1 --lanes 2 --envs-per-worker {all}",
}


def together(words: list[str], runs: int) -> float:
    """Of as many runs at once, that know nothing of each other: what the machine has for any way to share them."""
    with ThreadPoolExecutor(runs) as pool:
        return sum(pool.map(agent_steps_per_s, [words] * runs))


def agent_steps_per_s(words: list[str]) -> float:
    """Of a run's last SECONDS."""
    hours = str((SECONDS + WARM_UP_S) / 3600)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        limits = ["--max-hours", hours, "--track", "--metrics-window-s", "0.5", "--run-dir", str(run)]
        command = [sys.executable, "-m", "launch", "train", "breakout", *words, *limits]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        steps = [r for r in whole_run(RunFolder(run)) if r["kind"] == "step" and "agent_steps" in r]
        end_s = max(r["time_s"] for r in steps) - 0.5
        return sum(r["agent_steps"] for r in steps if end_s - SECONDS < r["time_s"] <= end_s) / SECONDS


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
