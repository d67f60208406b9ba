"""What lanes cost: from the gradients of all lanes to the parameters that follow, without computing or network.

    python -m param_servers.benchmarks.lanes --lanes 2 4 8 12 16 --megabytes 0.7 2.7 6.7

The exchange around which the lanes stand commits nothing, so a step is: write a row, add up, push, pull, copy. One JSON
object a line, medians of lane 0: `step_ms` of it all, `bytes_per_step` that all lanes read and write, and
`memory_share`: their rate against one core's copy of a large array, measured before. On a machine with fewer cores
than lanes the lanes take turns, and the line says so.
"""

import argparse
import json
import os
import statistics
import time

import torch
from torch import Tensor

from param_servers.exchange import Pull, Receipt
from param_servers.lanes import Lane, run_in_lanes
from param_servers.timeouts import Timeouts

WARM_UP_STEPS = 5


class Nothing:
    """A `GradientExchange` that takes everything and changes nothing."""

    def __init__(self, numel: int) -> None:
        self._parameters, self._step = torch.zeros(numel), 0

    def pull(self) -> Pull:
        return Pull(self._parameters, self._step, 0)

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        self._step += 1
        return Receipt(True, self._step)

    def close(self) -> None:
        return


def measure(lanes: int, megabytes: float, steps: int) -> dict[str, float]:
    """One line."""
    numel = int(megabytes * 1e6 / 4)
    took_s: list[float] = []

    def main(lane: Lane) -> str:
        exchange, gradient = lane.exchange(lambda: Nothing(numel), numel), torch.ones(numel)
        for _ in range(WARM_UP_STEPS + steps):
            start_s = time.perf_counter()
            pulled = exchange.pull()
            exchange.push(gradient, pulled.step, 1)
            took_s.append(time.perf_counter() - start_s)
        return ""

    run_in_lanes(lanes, main, timeouts=Timeouts())
    step_s = statistics.median(took_s[WARM_UP_STEPS:])
    # parameters: read and written once; rows: written from each lane's own, read for the sum; the mean written once
    moved = 4 * numel * (2 + 3 * lanes + 1 if lanes > 1 else 0)
    return {"step_ms": 1e3 * step_s, "bytes_per_step": moved, "gigabytes_per_s": moved / step_s / 1e9}


def copy_gigabytes_per_s() -> float:
    """Read and written by one core that copies 64 MB."""
    source, target = torch.ones(16_000_000), torch.empty(16_000_000)
    took_s = []
    for _ in range(10):
        start_s = time.perf_counter()
        target.copy_(source)
        took_s.append(time.perf_counter() - start_s)
    return 2 * 4 * source.numel() / statistics.median(took_s) / 1e9


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=[2, 4, 8, 12, 16])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.7, 2.7, 6.7])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    copies, cores = copy_gigabytes_per_s(), len(os.sched_getaffinity(0))
    for megabytes in options.megabytes:
        for lanes in options.lanes:
            row = measure(lanes, megabytes, options.steps)
            shown = {name: float(f"{value:.4g}") for name, value in row.items()}
            share = float(f"{row['gigabytes_per_s'] / copies:.3g}")
            print(json.dumps({"lanes": lanes, "cores": cores, "megabytes": megabytes, **shown, "memory_share": share}))


if __name__ == "__main__":
    main()
