"""What stragglers cost, and how many backup workers take away.

    python results/stragglers/measure.py --output results/stragglers/stragglers.csv        (root)

8 + b workers in network namespaces at 100 Mbit/s sleep instead of computing, and push a constant gradient. At every
moment one of them, drawn at random, is in a sleep of 10 times the undisturbed step; worker 0 always computes 3 times as
long. Data points/s (gradients that counted) for b = 0, 1, 2, with parameter servers and with the majority all-reduce,
beside the same exchange with the same b where nobody straggles.
"""

import argparse
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import torch

from dba3c.studies.page import write_rows
from param_servers.benchmarks.exchange import WARM_UP_STEPS, Case, Compute, run

GRADIENTS, SLEEP_STEPS, SLOW = 8, 10, 3.0
COLUMNS = (
    "exchange", "gradients", "backup", "stragglers", "megabytes", "servers", "rate_mbit", "compute_ms", "steps",
    "step_ms", "data_points_per_s", "of_undisturbed", "dropped_share",
)  # fmt: skip


def straggling(case: Case, compute_s: float, nap_s: float, seed: int) -> Compute:
    """Sleeps `compute_s`, but for worker 0 and whose turn it is to nap; with `nap_s` 0 nobody straggles."""
    draw = random.Random(seed)
    order = [draw.randrange(1, case.workers) for _ in range(10_000)]
    naps = multiprocessing.get_context("fork").Value("i", 0)
    """How many are over; worker `order[naps]` takes the next."""

    def compute(worker: int, step: int) -> None:
        if nap_s and worker == 0:
            time.sleep(SLOW * compute_s)
        elif nap_s and worker == order[naps.value]:
            time.sleep(nap_s)
            naps.value += 1
        else:
            time.sleep(compute_s)

    return compute


def measure(case: Case, compute_s: float, nap_s: float, seed: int) -> dict[str, Any]:
    """One case: what counted of the time from the end of the warm-up on."""
    took_s, answers = 0.0, list[bool]()
    for worker in run(case, straggling(case, compute_s, nap_s, seed)).workers:
        first = next(index for index, (step, _) in enumerate(worker.pulls) if step >= WARM_UP_STEPS)
        took_s = max(took_s, worker.ended_s - worker.pulls[first][1])
        answers += worker.accepted[first:]
    return {
        "step_ms": 1e3 * took_s / case.steps,
        "data_points_per_s": GRADIENTS * case.steps / took_s,
        "dropped_share": answers.count(False) / len(answers),
    }


def rows(options: argparse.Namespace, exchange: str, backup: int) -> list[dict[str, Any]]:
    """Undisturbed, then with stragglers."""
    found: list[dict[str, Any]] = []
    for straggle in (False, True):
        # Where no worker can be spared every step takes a whole nap.
        steps = options.steps if not straggle or backup else max(10, options.steps // 3)
        servers = options.servers if exchange == "servers" else 0
        case = Case(exchange, options.megabytes, GRADIENTS + backup, backup, servers, options.rate_mbit, steps)
        nap_s = SLEEP_STEPS * found[0]["step_ms"] / 1e3 if straggle else 0.0
        row = measure(case, options.compute_ms / 1e3, nap_s, options.seed)
        undisturbed = (found[0] if straggle else row)["data_points_per_s"]
        row |= {
            "exchange": exchange, "gradients": GRADIENTS, "backup": backup, "stragglers": straggle,
            "megabytes": options.megabytes, "servers": servers or "",
            "rate_mbit": options.rate_mbit, "compute_ms": options.compute_ms, "steps": steps,
            "of_undisturbed": row["data_points_per_s"] / undisturbed,
        }  # fmt: skip
        found.append(row)
        print(" ".join(f"{name}={_text(row[name])}" for name in COLUMNS), flush=True)
    return found


def _text(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", nargs="+", default=["servers", "majority"], choices=["servers", "majority"])
    parser.add_argument("--backup", type=int, nargs="+", default=[0, 1, 2], help="b")
    parser.add_argument("--megabytes", type=float, default=0.133, help="M, bytes of the parameters / 1e6")
    parser.add_argument("--servers", type=int, default=2, help="k")
    parser.add_argument("--rate-mbit", type=float, default=100.0)
    parser.add_argument("--compute-ms", type=float, default=100.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="the CSV")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = [row for exchange in options.exchanges for b in options.backup for row in rows(options, exchange, b)]
    write_rows(options.output, [{name: _text(row[name]) for name in COLUMNS} for row in found])


if __name__ == "__main__":
    main()
