"""What stragglers cost, and how many backup workers take away.

    python -m param_servers.benchmarks.stragglers --output results/stragglers/stragglers.csv        (root)

8 + b workers in network namespaces at 100 Mbit/s sleep instead of computing, and push a constant gradient. At every
moment one of them, drawn at random, is in a sleep of 10 times the undisturbed step; worker 0 always computes 3 times as
long. Data points/s (gradients that counted) for b = 0, 1, 2, with parameter servers and with the majority all-reduce,
beside the same exchange with the same b where nobody straggles.
"""

import argparse
import csv
import multiprocessing
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from param_servers.benchmarks.exchange_case import WARM_UP_STEPS, Bench, Case
from param_servers.benchmarks.namespaces import Namespaces
from param_servers.exchange import RunStopped

GRADIENTS, SLEEP_STEPS, SLOW = 8, 10, 3.0
COLUMNS = (
    "exchange", "gradients", "backup", "stragglers", "megabytes", "servers", "rate_mbit", "compute_ms", "steps",
    "step_ms", "data_points_per_s", "of_undisturbed", "dropped_share",
)  # fmt: skip
_FORK = multiprocessing.get_context("fork")


class StragglingBench(Bench):
    """Workers that sleep for `compute_s`, some of them much longer.

    Args:
        nap_s: the random straggler's sleep; 0: nobody straggles.
    """

    def __init__(self, case: Case, folder: Path, hosts: Namespaces, compute_s: float, nap_s: float, seed: int) -> None:
        super().__init__(case, folder, hosts)
        self._compute_s, self._nap_s = compute_s, nap_s
        draw = random.Random(seed)
        self._order = [draw.randrange(1, case.workers) for _ in range(10_000)]
        self._naps: Any = _FORK.Value("i", 0)
        """How many naps are over; worker `_order[naps]` takes the next."""

    def _worker(self, rank: int, host: str) -> None:
        exchange = self._exchange(rank, host)
        gradient = torch.full((self.case.numel,), 1e-3)
        began_s, first, last, accepted, dropped = 0.0, 0, 0, 0, 0
        try:
            while True:
                pull = exchange.pull()
                if pull.step >= WARM_UP_STEPS and not began_s:
                    began_s, first = time.perf_counter(), pull.step
                last = pull.step
                self._compute(rank)
                counted = exchange.push(gradient, pull.step, data_points=1).accepted
                if began_s:
                    accepted, dropped = accepted + counted, dropped + (not counted)
        except RunStopped:
            pass
        took_s = time.perf_counter() - began_s
        self.results.put(
            {"rank": rank, "took_s": took_s, "steps": last - first, "accepted": accepted, "dropped": dropped}
        )
        exchange.close()

    def _compute(self, rank: int) -> None:
        if self._nap_s and rank == 0:
            time.sleep(SLOW * self._compute_s)
        elif self._nap_s and rank == self._order[self._naps.value]:
            time.sleep(self._nap_s)
            self._naps.value += 1
        else:
            time.sleep(self._compute_s)

    def _summary(self, found: list[dict[str, Any]], after: Any, before: Any) -> dict[str, Any]:
        took_s = max(worker["took_s"] for worker in found)
        steps = self.case.steps
        dropped, accepted = (sum(worker[name] for worker in found) for name in ("dropped", "accepted"))
        return {
            "step_ms": 1e3 * took_s / steps,
            "data_points_per_s": GRADIENTS * steps / took_s,
            "dropped_share": dropped / (dropped + accepted),
        }


def measure(case: Case, compute_s: float, nap_s: float, seed: int) -> dict[str, Any]:
    """One case, in processes and namespaces of its own."""
    hosts = Namespaces(case.hosts, case.rate_mbit)
    with TemporaryDirectory() as folder, hosts:
        return StragglingBench(case, Path(folder), hosts, compute_s, nap_s, seed).run()


def rows(options: argparse.Namespace, exchange: str, backup: int) -> list[dict[str, Any]]:
    """Undisturbed, then with stragglers."""
    found: list[dict[str, Any]] = []
    for straggle in (False, True):
        # Where no worker can be spared every step takes a whole nap.
        steps = options.steps if not straggle or backup else max(10, options.steps // 3)
        case = Case(exchange, options.megabytes, GRADIENTS + backup, backup, options.servers, options.rate_mbit, steps)
        nap_s = SLEEP_STEPS * found[0]["step_ms"] / 1e3 if straggle else 0.0
        row = measure(case, options.compute_ms / 1e3, nap_s, options.seed)
        undisturbed = (found[0] if straggle else row)["data_points_per_s"]
        row |= {
            "exchange": exchange, "gradients": GRADIENTS, "backup": backup, "stragglers": straggle,
            "megabytes": options.megabytes, "servers": options.servers if exchange == "servers" else "",
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
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(row[name]) for name in COLUMNS} for row in found)


if __name__ == "__main__":
    main()
