"""Start-up, memory and overhead of 64 ranks on a real Slurm on this machine, written to results/launch.

python -m launch.benchmarks            (root; about 12 minutes on two idle cores; 12 GB of memory)
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from dba3c.runs import host_facts
from launch.benchmarks.lab import ROOT, slurm_lab
from launch.benchmarks.overhead import measure_overhead
from launch.benchmarks.report import write_report
from launch.benchmarks.startup import measure_startup
from launch.benchmarks.synthetic import Case

CASES = ["4:0.004:0", "4:0.133:0", "4:1.33:0", "4:1.33:4", "1:0.004:0", "1:0.133:0", "1:1.33:0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "launch")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--sleep-s", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cases", type=Case.parse, nargs="+", default=list(map(Case.parse, CASES)))
    parser.add_argument("--startup-ranks", type=int, default=64, help="0: overhead only")
    options = parser.parse_args()
    nodes = max(options.startup_ranks, options.workers + max(case.servers for case in options.cases))
    with slurm_lab(nodes) as lab:
        startup = measure_startup(lab, options.startup_ranks) if options.startup_ranks else {}
        print(startup, flush=True)
        overhead = measure_overhead(
            lab, options.cases, workers=options.workers, sleep_s=options.sleep_s, steps=options.steps
        )
    write_report(
        options.out, {**facts(), "nodes": nodes, "steps": options.steps, "startup": startup, "overhead": overhead}
    )
    print((options.out / "README.md").read_text())


def facts() -> dict[str, Any]:
    """When, where, and by which command."""
    host, versions, source = host_facts.host(), host_facts.versions(), host_facts.git_commit()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "-m", "launch.benchmarks", *sys.argv[1:]]),
        "commit": source,
        "machine": {**host, "torch": versions.get("torch"), "python": versions.get("python")},
    }


if __name__ == "__main__":
    main()
