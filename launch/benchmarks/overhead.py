"""The framework's overhead at 64 workers: they sleep 100 ms instead of computing; all the rest is the real thing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from launch.benchmarks.lab import Lab
from launch.benchmarks.synthetic import WARM_UP_STEPS, Case

TIMEOUT_S = 2400.0


def measure_overhead(
    lab: Lab, cases: Sequence[Case], *, workers: int, sleep_s: float, steps: int
) -> list[dict[str, Any]]:
    """One row for each case; a single srun starts all ranks, which go through the cases together."""
    servers = max(case.servers for case in cases)
    folder = lab.folder / "overhead"
    words = [
        sys.executable, "-m", "launch.benchmarks.synthetic", "--folder", str(folder), "--workers", str(workers),
        "--sleep-s", str(sleep_s), "--steps", str(steps), "--cases", *map(str, cases),
    ]  # fmt: skip
    nodes = str(workers + servers)
    lab.run("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--mpi=none", *words, timeout_s=TIMEOUT_S)
    return [row(case, folder / str(case), workers, sleep_s, steps) for case in cases]


def row(case: Case, folder: Path, workers: int, sleep_s: float, steps: int) -> dict[str, Any]:
    """The figures of one case, from what its ranks left in ``folder``."""
    of_workers = [json.loads((folder / f"worker-{rank}.json").read_text()) for rank in range(workers)]
    of_servers = [json.loads((folder / f"server-{shard}.json").read_text()) for shard in range(case.servers)]
    first = of_workers[0]["steps_s"]
    in_all = steps + WARM_UP_STEPS  # bytes are counted from the first step on, the rest after the warm-up
    sections: dict[str, float] = {}
    for server in of_servers:
        for name, seconds in server["sections_s"].items():
            sections[name] = sections.get(name, 0.0) + 1e3 * seconds / steps
    return {
        "workers": workers,
        "servers": case.servers,
        "backup_workers": case.backup,
        "megabytes": case.megabytes,
        "sleep_ms": 1e3 * sleep_s,
        "step_ms": 1e3 * median(first),
        "step_p90_ms": 1e3 * quantiles(first, n=10)[-1],
        "over_sleep": median(first) / sleep_s,
        "moved_mb_per_step": sum(worker["bytes"] for worker in of_workers) / 1e6 / in_all,
        "workers_cpu_ms_per_step": 1e3 * sum(worker["cpu_s"] for worker in of_workers) / steps,
        "servers_cpu_ms_per_step": 1e3 * sum(server["cpu_s"] for server in of_servers) / steps,
        "worker_waits_per_step": median(worker["waits"] for worker in of_workers) / steps,
        "server_waits_per_step": sum(server["waits"] for server in of_servers) / steps,
        "threads_per_worker": median(worker["threads"] for worker in of_workers),
        "servers_sections_ms_per_step": {name: round(ms, 2) for name, ms in sorted(sections.items())},
    }
