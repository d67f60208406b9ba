"""What stragglers cost, and how many backup workers take away.

    python results/stragglers/measure.py        (root, idle, 3 minutes)

8 + b workers in network namespaces at 100 Mbit/s sleep instead of computing, and push a constant gradient. At every
moment one of them, drawn at random, is in a sleep of 10 times the undisturbed step; worker 0 always computes 3 times as
long. Data points/s (gradients that counted) for b = 0, 1, 2, with parameter servers and with the majority all-reduce,
beside the same exchange with the same b where nobody straggles. Writes stragglers.csv and meta.json.
"""

import argparse
import json
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import torch

from dba3c.studies.page import facts, write_rows
from param_servers.benchmarks.exchange import WARM_UP_STEPS, Case, Compute, run

HERE = Path(__file__).resolve().parent
GRADIENTS, SLEEP_STEPS, SLOW = 8, 10, 3.0
BACKUP_WORKERS = (0, 1, 2)
SERVERS, MEGABYTES, RATE_MBIT, COMPUTE_S, STEPS, SEED = 2, 0.133, 100.0, 0.1, 50, 0
COLUMNS = (
    "exchange", "gradients", "backup", "stragglers", "megabytes", "servers", "rate_mbit", "compute_ms", "steps",
    "step_ms", "data_points_per_s", "of_undisturbed", "dropped_share",
)  # fmt: skip


def straggling(case: Case, nap_s: float) -> Compute:
    """Sleeps COMPUTE_S, but for worker 0 and whose turn it is to nap; with `nap_s` 0 nobody straggles."""
    draw = random.Random(SEED)
    order = [draw.randrange(1, case.workers) for _ in range(10_000)]
    naps = multiprocessing.get_context("fork").Value("i", 0)
    """How many are over; worker `order[naps]` takes the next."""

    def compute(worker: int, step: int) -> None:
        if nap_s and worker == 0:
            time.sleep(SLOW * COMPUTE_S)
        elif nap_s and worker == order[naps.value]:
            time.sleep(nap_s)
            naps.value += 1
        else:
            time.sleep(COMPUTE_S)

    return compute


def measure(case: Case, nap_s: float) -> dict[str, Any]:
    """One case: what counted of the time from the end of the warm-up on."""
    took_s, answers = 0.0, list[bool]()
    for worker in run(case, straggling(case, nap_s)).workers:
        first = next(index for index, (step, _) in enumerate(worker.pulls) if step >= WARM_UP_STEPS)
        took_s = max(took_s, worker.ended_s - worker.pulls[first][1])
        answers += worker.accepted[first:]
    return {
        "step_ms": 1e3 * took_s / case.steps,
        "data_points_per_s": GRADIENTS * case.steps / took_s,
        "dropped_share": answers.count(False) / len(answers),
    }


def rows(exchange: str, backup: int) -> list[dict[str, Any]]:
    """Undisturbed, then with stragglers."""
    found: list[dict[str, Any]] = []
    for straggle in (False, True):
        # Where no worker can be spared every step takes a whole nap.
        steps = STEPS if not straggle or backup else STEPS // 3
        servers = SERVERS if exchange == "servers" else 0
        case = Case(exchange, MEGABYTES, GRADIENTS + backup, backup, servers, RATE_MBIT, steps)
        nap_s = SLEEP_STEPS * found[0]["step_ms"] / 1e3 if straggle else 0.0
        row = measure(case, nap_s)
        undisturbed = (found[0] if straggle else row)["data_points_per_s"]
        row |= {
            "exchange": exchange, "gradients": GRADIENTS, "backup": backup, "stragglers": straggle,
            "megabytes": MEGABYTES, "servers": servers or "", "rate_mbit": RATE_MBIT, "compute_ms": 1e3 * COMPUTE_S,
            "steps": steps, "of_undisturbed": row["data_points_per_s"] / undisturbed,
        }  # fmt: skip
        found.append(row)
        print(" ".join(f"{name}={_text(row[name])}" for name in COLUMNS), flush=True)
    return found


def _text(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    found = [row for exchange in ("servers", "majority") for b in BACKUP_WORKERS for row in rows(exchange, b)]
    write_rows(HERE / "stragglers.csv", [{name: _text(row[name]) for name in COLUMNS} for row in found])
    made = facts("python results/stragglers/measure.py")
    (HERE / "meta.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
