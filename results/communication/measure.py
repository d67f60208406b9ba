"""How near the exchanges come to the wire: `python results/communication/measure.py` (root; about 8 minutes, idle)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from dba3c.studies.page import facts, write_rows
from param_servers.benchmarks.exchange import Case, measure

HERE = Path(__file__).resolve().parent
WORKERS, RATE_MBIT = 8, 100.0
SLOW_MBIT = 25.0
"""At this rate two cores are enough for sixteen hosts also where steps are short."""
STEPS = {1.33: 30, 6.7: 12}
REPEATS = {1.33: 3, 6.7: 1}
"""Runs of a case, of which the median counts: short steps notice what else the machine's host does."""
SERVERS = (1, 2, 4, 8)


def cases() -> list[Case]:
    """Slow links first, then loopback without limit."""
    found = []
    for megabytes, steps in STEPS.items():
        found += [Case("servers", megabytes, WORKERS, 0, k, RATE_MBIT, steps) for k in SERVERS]
        found.append(Case("allreduce", megabytes, WORKERS, 0, 0, RATE_MBIT, steps))
    found.append(Case("servers", min(STEPS), WORKERS, 0, max(SERVERS), SLOW_MBIT, 12))
    for megabytes in STEPS:
        found += [Case("servers", megabytes, workers, 0, 1, 0.0, 100) for workers in (1, 2)]
    return found


def main() -> None:
    """Measure, write exchange.csv and meta.json."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in cases():
        runs = sorted((measure(case) for _ in range(REPEATS[case.megabytes])), key=lambda run: run["step_ms"])
        rows.append(runs[len(runs) // 2])
        print(json.dumps(rows[-1]), flush=True)
    write_rows(HERE / "exchange.csv", rows)
    made = facts("python results/communication/measure.py")
    (HERE / "meta.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
