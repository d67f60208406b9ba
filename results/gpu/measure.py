"""A node of many cores and one GPU: central inference on it, beside the same cores' own lanes.

    python results/gpu/measure.py [--seconds 8] [--until-s 240] [CASE …]

Real `dba3c train` runs of Breakout, one after another; agent steps/s, cores in use and what the learner says of itself,
for some seconds after a warm-up. Appends each to rows.jsonl, and writes the table of README.md; `page` writes it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from throughput import measure as throughput

from dba3c.metrics.reader import whole_run
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import add_row, facts, made_by, markdown, renew, rows_of

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows.jsonl"
CORES = os.cpu_count() or 1
ACTORS = max(1, CORES - 2)
CENTRAL = f"--mode central --algorithm vtrace --exchange local --workers 1 --actors {ACTORS} --envs-per-actor 32"
LANES = "--exchange local --workers 1 --lanes {lanes} --envs-per-worker {envs}"
LONG = "--unroll-length 20 --batch-unrolls 64"
CASES = {
    **{
        f"GPU, {network}, {precision}": f"{CENTRAL} {LONG} --device cuda --network {network} --precision {precision}"
        for network in ("small", "nature", "resnet")
        for precision in ("bfloat16", "float32")
    },
    "GPU, small, 320 samples": f"{CENTRAL} --unroll-length 10 --batch-unrolls 32 --device cuda --precision float32",
    "CPU learner, small": f"{CENTRAL} {LONG} --precision bfloat16",
    **{
        f"{lanes} lane{'s' if lanes > 1 else ''}, {network}": LANES.format(lanes=lanes, envs=16 * lanes)
        + f" --network {network} --precision bfloat16"
        for network in ("small", "nature")
        for lanes in (1, 2, 4, 8, 12, 16)
    },
    "16 lanes, small, 2 environments a lane": f"{LANES.format(lanes=16, envs=32)} --precision bfloat16",
    "16 lanes, small, 4 environments a lane": f"{LANES.format(lanes=16, envs=64)} --precision bfloat16",
}
TOLD = ("inference_batch", "inference_latency_p50_ms", "inference_latency_p99_ms", "policy_lag_mean", "unroll_queue",
        "inference_thread_holding", "inference_thread_inference", "inference_thread_serving",
        "inference_thread_waiting")  # fmt: skip


def of_learners(folder: RunFolder) -> dict[str, float]:
    """Medians of what learners told of themselves in the second half of a run."""
    learners = [r for r in whole_run(folder) if r["kind"] == "step" and r.get("role") == "learner"]
    half = learners[len(learners) // 2 :]
    values = {name: [r[name] for r in half if name in r] for name in TOLD}
    return {name: round(statistics.median(found), 4) for name, found in values.items() if found}


def write_page() -> None:
    """All rows, and when and where the last of them was made."""
    order, every = list(CASES), rows_of(ROWS)
    rows = {row["case"]: row for row in every}.values()  # the newest of each
    cells = [
        [row["case"], f"{row['agent_steps_per_s']:,.0f}", f"{row['cores']:.1f}", f"{row['per_core_s']:,.0f}",
         *(f"{row[name]:.3g}" if name in row else "–" for name in ("inference_batch", "inference_latency_p50_ms",
                                                                   "inference_latency_p99_ms", "policy_lag_mean"))]
        for row in sorted(rows, key=lambda row: order.index(row["case"]))
    ]  # fmt: skip
    header = ["run", "agent steps/s", "cores in use", "per core-second", "batch", "p50 ms", "p99 ms", "policy lag"]
    renew(HERE / "README.md", every[-1]["made"], markdown(header, cells))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=f"page, or any of {list(CASES)}")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--until-s", type=float, default=3600.0, help="no case begins after so long")
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    if options.cases == ["page"]:
        return write_page()
    if unknown := [case for case in options.cases if case not in CASES]:
        parser.error(f"no case is called {unknown[0]!r}")
    missing: list[str] = []
    throughput.SECONDS, throughput.WARM_UP_S, began_s = options.seconds, options.seconds / 2, time.monotonic()
    made = facts("python results/gpu/measure.py")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    for case in options.cases:
        if time.monotonic() - began_s > options.until_s:
            missing.append(f"{case}: no time was left")
            continue
        try:
            words = [*CASES[case].split(), "--track", "--step-timeout-s", "120"]
            found = throughput.run(words, "actor" if "central" in words else "worker", of_learners)
        except TimeoutError as error:
            missing.append(f"{case}: {error}")
            continue
        print(f"{time.monotonic() - began_s:.0f} s", case, json.dumps(found), flush=True)
        add_row(options.rows, {"case": case, "gpu": gpu, **found, "made": made_by(made)})
    if options.rows == ROWS:
        write_page()
    if missing:
        sys.exit("\n".join(missing))


if __name__ == "__main__":
    main()
