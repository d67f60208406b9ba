"""How long pull + push takes, beside the lower bound of the wire.

    python -m param_servers.benchmarks.exchange --megabytes 1.33 6.7 --workers 8 --servers 1 2 4 8 --rate-mbit 100
    python -m param_servers.benchmarks.exchange --exchange allreduce --workers 4          (loopback, no limit)

Workers compute nothing: they push a constant gradient. With --rate-mbit each process is a host of its own in a network
namespace (root). One JSON object a line: medians of worker 0, bytes and CPU-seconds of all processes.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from param_servers.benchmarks.exchange_case import Case, measure


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All combinations asked for."""
    for megabytes in options.megabytes:
        for workers in options.workers:
            for servers in options.servers if options.exchange in ("servers", "async") else [0]:
                yield Case(
                    options.exchange, megabytes, workers, options.backup, servers, options.rate_mbit, options.steps
                )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", default="servers", choices=["servers", "async", "allreduce", "majority"])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.33], help="M, bytes of the parameters / 1e6")
    parser.add_argument("--workers", type=int, nargs="+", default=[4], help="n, backup workers included")
    parser.add_argument("--backup", type=int, default=0, help="b")
    parser.add_argument("--servers", type=int, nargs="+", default=[1], help="k")
    parser.add_argument("--rate-mbit", type=float, default=0, help="per host and direction; 0: loopback, no limit")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output", type=Path, help="append the JSON lines there too")
    options = parser.parse_args(arguments)
    if options.backup and options.exchange not in ("servers", "majority"):
        parser.error(f"--exchange {options.exchange} knows no backup workers: servers and majority do")
    torch.set_num_threads(1)
    for case in cases(options):
        line = json.dumps(measure(case))
        print(line, flush=True)
        if options.output is not None:
            with options.output.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
