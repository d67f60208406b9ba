"""One case of the exchange benchmark: its processes, forked and in namespaces if it asks for them, and its figures."""

import itertools
import json
import multiprocessing
import os
import resource
import statistics
import time
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from param_servers.benchmarks.bounds import bound_s
from param_servers.benchmarks.namespaces import Namespaces
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer

WARM_UP_STEPS = 3
PATIENCE_S = 600.0
SECRET = os.urandom(32)
_FORK = multiprocessing.get_context("fork")


class Case(NamedTuple):
    """One measurement."""

    exchange: str
    megabytes: float
    workers: int
    backup: int
    servers: int
    rate_mbit: float
    """0: no limit, on loopback."""
    steps: int

    @property
    def model_bytes(self) -> int:
        return 4 * self.numel

    @property
    def numel(self) -> int:
        return int(self.megabytes * 1e6 / 4)

    @property
    def hosts(self) -> int:
        return self.workers + (self.servers if self.has_servers else 0)

    @property
    def has_servers(self) -> bool:
        return self.exchange in ("servers", "async")

    def config(self, host: str) -> ExchangeConfig:
        return ExchangeConfig(
            exchange=self.exchange,  # type: ignore[arg-type]
            num_workers=self.workers,
            num_backup_workers=self.backup if self.exchange in ("servers", "majority") else None,
            num_servers=self.servers if self.has_servers else 1,
            listen_host=host,
            checkpoint_every_steps=0,
        )


class Bench:
    """Runs one case in forked processes that meet in a temporary folder."""

    def __init__(self, case: Case, folder: Path, hosts: Namespaces | None) -> None:
        self.case, self.folder, self.hosts = case, folder, hosts
        layout = FlatLayout.of({"w": (case.numel,)})
        servers = case.servers if case.has_servers else 1
        self.plan: ShardPlan = plan_shards(layout, servers)
        self.results: Queue[Any] = _FORK.Queue()

    def run(self) -> dict[str, Any]:
        case, before = self.case, resource.getrusage(resource.RUSAGE_CHILDREN)
        roles: list[tuple[Any, int]] = [(self._worker, rank) for rank in range(case.workers)]
        if case.has_servers:
            roles = [(self._server, shard) for shard in range(case.servers)] + roles
        processes: list[BaseProcess] = []
        for host, (role, rank) in enumerate(roles):
            processes.append(_FORK.Process(target=self._guarded, args=(host, role, rank)))
            processes[-1].start()
        try:
            found = [self.results.get(timeout=PATIENCE_S) for _ in range(case.workers)]
            for process in processes:
                process.join(30)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
        return self._summary(found, resource.getrusage(resource.RUSAGE_CHILDREN), before)

    def _summary(self, found: list[dict[str, Any]], after: Any, before: Any) -> dict[str, Any]:
        case = self.case
        times = next(result["times_s"] for result in found if result["rank"] == 0)
        moved = sum(result["bytes"] for result in found)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        median_s = statistics.median(times)
        summary = {
            **case._asdict(),
            "step_ms": 1e3 * median_s,
            "step_p90_ms": 1e3 * statistics.quantiles(times, n=10)[-1],
            "bytes_per_step": moved / (case.steps + WARM_UP_STEPS),
            "cpu_s_per_gb": cpu_s / (moved / 1e9) if moved else None,
        }
        if self.hosts is not None:
            summary["congestion_control"] = self.hosts.congestion_control
            bound = bound_s(case.exchange, case.model_bytes, case.workers, case.servers, case.rate_mbit * 1e6 / 8)
            summary |= {"bound_ms": 1e3 * bound, "over_bound": median_s / bound}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in summary.items()}

    # -- the processes -------------------------------------------------------------------------------------------

    def _guarded(self, host: int, role: Any, rank: int) -> None:
        torch.set_num_threads(1)
        address = "127.0.0.1"
        if self.hosts is not None:
            self.hosts.enter(host)
            address = self.hosts.address(host)
        role(rank, address)
        self.results.close()
        self.results.join_thread()
        os._exit(0)

    def _server(self, shard: int, host: str) -> None:
        steps = WARM_UP_STEPS + self.case.steps
        ParameterServer(
            shard=shard,
            plan=self.plan,
            initial_parameters=torch.zeros(self.case.numel),
            optimizer_config=OptimizerConfig(optimizer="rmsprop"),
            exchange_config=self.case.config(host),
            resolve=self._resolve,
            secret=SECRET,
            publish_address=lambda host, port: self._publish(shard, host, port),
            should_stop=lambda step, data_points: "measured" if step >= steps else None,
        ).run()

    def _worker(self, rank: int, host: str) -> None:
        exchange = self._exchange(rank, host)
        gradient = torch.full((self.case.numel,), 1e-3)
        ends = []
        try:
            while True:
                pull = exchange.pull()
                ends.append(time.perf_counter())
                exchange.push(gradient, pull.step, data_points=1)
        except RunStopped:
            pass
        steps = [end - start for start, end in itertools.pairwise(ends)][WARM_UP_STEPS:]
        moved = sum(exchange.bytes_moved) if isinstance(exchange, ServersExchange) else self._ring_bytes()
        self.results.put({"rank": rank, "times_s": steps, "bytes": moved})
        exchange.close()

    def _ring_bytes(self) -> int:
        case = self.case
        return int(4 * (case.workers - 1) * case.model_bytes / case.workers * (case.steps + WARM_UP_STEPS))

    def _exchange(self, rank: int, host: str) -> GradientExchange:
        config = self.case.config(host)
        if self.case.has_servers:
            return ServersExchange(
                worker=rank, plan=self.plan, exchange_config=config, resolve=self._resolve, secret=SECRET
            )
        steps = WARM_UP_STEPS + self.case.steps
        common: dict[str, Any] = {
            "layout": self.plan.layout,
            "initial_parameters": torch.zeros(self.case.numel),
            "optimizer_config": OptimizerConfig(optimizer="rmsprop"),
            "exchange_config": config,
            "should_stop": lambda step, data_points: "measured" if step >= steps else None,
        }
        meet: dict[str, Any] = {"secret": SECRET, "resolve": self._resolve}

        def publish(host: str, port: int) -> None:
            self._publish(0, host, port)

        if self.case.exchange == "majority":
            from param_servers.majority.exchange import MajorityExchange

            return MajorityExchange(rank=rank, publish_address=publish, **meet, **common)
        from param_servers.allreduce.collective import TorchCollective
        from param_servers.allreduce.exchange import AllReduceExchange

        collective = TorchCollective.join(rank, self.case.workers, publish=publish, host=host, **meet)
        return AllReduceExchange(collective=collective, **common)

    def _publish(self, shard: int, host: str, port: int) -> None:
        temporary = self.folder / f"server-{shard}.tmp"
        temporary.write_text(json.dumps([host, port]))
        temporary.replace(self.folder / f"server-{shard}.json")

    def _resolve(self, shard: int) -> tuple[str, int] | None:
        try:
            host, port = json.loads((self.folder / f"server-{shard}.json").read_text())
        except FileNotFoundError:
            return None
        return host, port


def measure(case: Case) -> dict[str, Any]:
    """One case, in processes (and namespaces) of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        hosts = stack.enter_context(Namespaces(case.hosts, case.rate_mbit)) if case.rate_mbit else None
        return Bench(case, folder, hosts).run()
