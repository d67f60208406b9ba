"""The framework's overhead at 64 workers: they sleep 100 ms instead of computing; all the rest is the real thing.

    srun python -m launch.benchmarks.overhead --folder F --workers 64 --sleep-s 0.1 --cases 4:1.33:0 1:0.004:0

is one rank of it. A case is SERVERS:MEGABYTES:BACKUP. Cases run one after the other in the same ranks; each rank leaves
its figures in ``F/CASE/ROLE-RANK.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

from dba3c.runs.atomic_files import write_atomically
from launch.benchmarks.slurm_lab import Lab
from launch.cluster.launchers import detect
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import RunStopped
from param_servers.layout import FlatLayout, plan_shards
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer

WARM_UP_STEPS = 5
SECRET = b"a benchmark on one machine, no secret"
JOIN_TIMEOUT_S = 1200.0
SRUN_TIMEOUT_S = 2400.0


class Case(NamedTuple):
    """What one measurement is about."""

    servers: int
    megabytes: float
    backup: int

    @classmethod
    def parse(cls, text: str) -> Case:
        servers, megabytes, backup = text.split(":")
        return cls(int(servers), float(megabytes), int(backup))

    def __str__(self) -> str:
        return f"{self.servers}:{self.megabytes:g}:{self.backup}"

    @property
    def numel(self) -> int:
        return max(self.servers, int(self.megabytes * 1e6 / 4))


class Rank:
    """What this process does in one case."""

    def __init__(self, case: Case, folder: Path, workers: int, sleep_s: float, steps: int) -> None:
        self.case, self.sleep_s, self.steps = case, sleep_s, steps + WARM_UP_STEPS
        self.folder = folder / str(case)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan = plan_shards(FlatLayout.of({"w": (case.numel,)}), case.servers)
        self.config = ExchangeConfig(
            exchange="servers",
            num_workers=workers,
            num_backup_workers=case.backup,
            num_servers=case.servers,
            checkpoint_every_steps=0,
            join_timeout_s=JOIN_TIMEOUT_S,
        )

    def serve(self, shard: int) -> None:
        reports: list[dict[str, Any]] = []
        usage = [_usage()]

        def should_stop(step: int, data_points: int) -> str | None:  # asked of shard 0; the others count the start too
            if step == WARM_UP_STEPS:
                usage[0] = _usage()
                reports.clear()
            return "measured" if step >= self.steps else None

        ParameterServer(
            shard=shard,
            plan=self.plan,
            initial_parameters=torch.zeros(self.case.numel),
            optimizer_config=OptimizerConfig(optimizer="rmsprop"),
            exchange_config=self.config,
            resolve=self._resolve,
            secret=SECRET,
            publish_address=lambda host, port: self._write(f"address-{shard}", {"host": host, "port": port}),
            should_stop=should_stop,
            on_report=reports.append,
        ).run()
        self._write(f"server-{shard}", {**_spent(usage[0]), "sections_s": _sections(reports)})

    def work(self, rank: int) -> None:
        exchange = ServersExchange(
            worker=rank, plan=self.plan, exchange_config=self.config, resolve=self._resolve, secret=SECRET
        )
        gradient = torch.full((self.case.numel,), 1e-3)
        before, starts, accepted = _usage(), [], 0
        try:
            while True:
                pull = exchange.pull()
                starts.append(time.perf_counter())
                if len(starts) == WARM_UP_STEPS:
                    before = _usage()
                time.sleep(self.sleep_s)
                accepted += exchange.push(gradient, pull.step, data_points=1).accepted
        except RunStopped:
            pass
        steps_s = [after - start for start, after in itertools.pairwise(starts)][WARM_UP_STEPS:]
        moved = sum(exchange.bytes_moved)
        exchange.close()
        self._write(f"worker-{rank}", {**_spent(before), "steps_s": steps_s, "bytes": moved, "accepted": accepted})

    def _resolve(self, shard: int) -> tuple[str, int] | None:
        try:
            address = json.loads((self.folder / f"address-{shard}.json").read_text())
        except FileNotFoundError:
            return None
        return address["host"], address["port"]

    def _write(self, name: str, figures: dict[str, Any]) -> None:
        write_atomically(self.folder / f"{name}.json", json.dumps(figures))


def _usage() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_SELF)


def _spent(before: resource.struct_rusage) -> dict[str, float]:
    """Processor time and context switches since then, in all threads of this process."""
    now = _usage()
    return {
        "cpu_s": now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime,
        "waits": now.ru_nvcsw - before.ru_nvcsw,
        "preemptions": now.ru_nivcsw - before.ru_nivcsw,
        "threads": len(os.listdir("/proc/self/task")),
    }


def _sections(reports: Sequence[dict[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for report in reports:
        for name, seconds in report.get("sections_s", {}).items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def measure_overhead(
    lab: Lab, cases: Sequence[Case], *, workers: int, sleep_s: float, steps: int
) -> list[dict[str, Any]]:
    """One row for each case; a single srun starts all ranks, which go through the cases together."""
    servers = max(case.servers for case in cases)
    folder = lab.folder / "overhead"
    words = [
        sys.executable, "-m", "launch.benchmarks.overhead", "--folder", str(folder), "--workers", str(workers),
        "--sleep-s", str(sleep_s), "--steps", str(steps), "--cases", *map(str, cases),
    ]  # fmt: skip
    nodes = str(workers + servers)
    lab.run("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--mpi=none", *words, timeout_s=SRUN_TIMEOUT_S)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--sleep-s", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cases", type=Case.parse, nargs="+", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = detect(os.environ)
    for case in options.cases:
        rank = Rank(case, options.folder, options.workers, options.sleep_s, options.steps)
        if place.rank < options.workers:
            rank.work(place.rank)
        elif place.rank - options.workers < case.servers:
            rank.serve(place.rank - options.workers)


if __name__ == "__main__":
    main()
