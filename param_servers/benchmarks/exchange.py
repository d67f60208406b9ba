"""How long pull + push takes, beside the lower bound of the wire.

    python -m param_servers.benchmarks.exchange --megabytes 1.33 6.7 --workers 8 --servers 1 2 4 8 --rate-mbit 100
    python -m param_servers.benchmarks.exchange --exchange allreduce --workers 4          (loopback, no limit)

Workers compute nothing, or sleep for --compute-ms, and push a constant gradient. With --rate-mbit each process is a
host of its own in a network namespace (root). One JSON object a line: medians of the steadiest worker, bytes and
CPU-seconds of all processes.

Other benchmarks make a `Case`, `run` it with workers that take their time, and read what the workers saw.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from param_servers.allreduce.collective import TorchCollective
from param_servers.allreduce.exchange import AllReduceExchange
from param_servers.benchmarks.hosts import FORK, Fault, Load, Namespaces, Processes, Snapshot, Striking
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, ParamServersError, told
from param_servers.exchange import GradientExchange, RunStopped
from param_servers.layout import FlatLayout, plan_shards
from param_servers.majority.exchange import MajorityExchange
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer

WARM_UP_STEPS = 3
STEP_TIMEOUT_S = 60.0


class Case(NamedTuple):
    """One measurement."""

    exchange: str
    megabytes: float
    workers: int
    backup: int
    servers: int
    """0: the exchange has none."""
    rate_mbit: float
    """0: no limit, on loopback."""
    steps: int
    """After WARM_UP_STEPS. Asynchronous servers: of each worker."""
    colocated: bool = False
    """Server k is a process on the host of worker k, not on a host of its own."""

    queue_bytes: int = 0
    """Of the switch for each host; 0: what leaves within 50 ms."""
    longest_compute_s: float = 0.0
    """Of a worker for a step: nobody is expelled for it."""

    @property
    def step_timeout_s(self) -> float:
        """So long that nobody is expelled for computing, nor a group broken up while it hands over its first state."""
        transfer_s = 8 * self.megabytes / self.rate_mbit if self.rate_mbit else 0.0
        of_a_server_s = transfer_s * self.workers / max(1, self.servers)
        return max(STEP_TIMEOUT_S, 3 * self.longest_compute_s, 100 * transfer_s, 10 * of_a_server_s)

    @property
    def hosts(self) -> int:
        return self.workers + (0 if self.colocated else self.servers)

    @property
    def numel(self) -> int:
        return int(self.megabytes * 1e6 / 4)

    @property
    def warm_up(self) -> int:
        return WARM_UP_STEPS * (self.workers if self.exchange == "async" else 1)

    @property
    def last_step(self) -> int:
        return self.warm_up + self.steps * (self.workers if self.exchange == "async" else 1)


class Worked(NamedTuple):
    """What one worker saw."""

    rank: int
    pulls: list[tuple[int, float]]
    """(step, time in seconds) of each."""
    accepted: list[bool]
    """The answers to the pushes after them."""
    ended_s: float
    bytes_moved: int | None
    """None: not counted, for torch.distributed moved them."""
    ended: str
    """Why."""
    load: Load | None
    """Worker 0: what the machine and each process, servers first, did after the warm-up. The others: None."""


class Measured(NamedTuple):
    """What the processes of a case did."""

    workers: list[Worked]
    """By rank."""
    cpu_s: float
    """Of all processes, from their beginning to their end."""
    congestion_control: str | None
    struck_s: float | None
    """When the fault happened, on the clock of `Worked.pulls`."""


Compute = Callable[[int, int], object]
"""(worker, step): called in the worker's process where it would compute the gradient of a step."""


class Others(NamedTuple):
    """An exchange that is not this library's, to be measured as ours are. Each call is in a process of its own."""

    join: Callable[[int, Case, Callable[[int], str]], GradientExchange]
    """(rank, case, address of server or worker i, servers first). Its `pull` raises RunStopped at `case.last_step`."""
    serve: Callable[[int, Case, Callable[[int], str]], None] | None = None
    """(server, case, the addresses): until the workers have ended."""


def run(
    case: Case,
    compute: Compute = lambda worker, step: None,
    gradient: torch.Tensor | None = None,
    others: Others | None = None,
    fault: Fault | None = None,
) -> Measured:
    """A case in processes of its own; with a rate limit in network namespaces, too (root).

    Args:
        gradient: [case.numel] float32 that all workers push; None: a constant.
        others: None: one of this library's exchanges.
        fault: what happens meanwhile; then workers that end with an error have ended, too.
    """
    if fault is not None:
        fault.check(case.workers, case.servers, case.colocated)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limited = Namespaces(case.hosts, case.rate_mbit, case.queue_bytes) if case.rate_mbit else nullcontext()
    shared = TemporaryDirectory() if fault is not None and fault.needs_checkpoints else nullcontext()
    with limited as hosts, shared as folder:
        values = torch.full((case.numel,), 1e-3) if gradient is None else gradient
        bench = _Bench(case, compute, values, others, hosts, fault, folder)
        with bench.processes as processes:
            striking = _striking(fault, bench, hosts) if fault is not None else None
            look = striking.look if striking is not None else lambda: None
            lost = fault.lost_workers if fault is not None else 0
            workers = sorted(processes.result(look) for _ in range(case.workers - lost))
            if lost:
                processes.kill(case.servers + case.workers - 1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    struck_s = striking.struck_s if striking is not None else None
    return Measured(workers, cpu_s, None if hosts is None else hosts.congestion_control, struck_s)


def _striking(fault: Fault, bench: "_Bench", hosts: Namespaces | None) -> Striking:
    case = bench.case
    if hosts is None:
        raise ConfigError("a fault needs hosts, and without --rate-mbit there are none")
    victim = case.servers - 1 if fault.kind == "dead server" else case.servers + case.workers - 1
    return Striking(fault, hosts, bench.processes, victim, bench.host(victim), lambda: bench.reached)


class _Bench:
    """What forked processes share: servers are numbers 0, 1, …, then come the workers."""

    def __init__(
        self,
        case: Case,
        compute: Compute,
        gradient: torch.Tensor,
        others: Others | None,
        hosts: Namespaces | None,
        fault: Fault | None,
        folder: str | None,
    ) -> None:
        self.case, self._compute, self._gradient, self._others, self._hosts = case, compute, gradient, others, hosts
        self._fault, self._folder = fault, Path(folder) if folder else None
        self._plan = plan_shards(FlatLayout.of({"w": (case.numel,)}), case.servers or 1)
        self._secret = os.urandom(32)
        self._ports = FORK.Array("i", case.servers or 1)
        self._reached = FORK.Value("q", -1)
        self.processes = Processes(case.servers + case.workers, self._be)

    @property
    def reached(self) -> int:
        """The step that worker 0 has pulled last."""
        return int(self._reached.value)

    def _be(self, number: int, incarnation: int) -> Worked | None:
        """This process is this server or worker."""
        if self._hosts is not None:
            self._hosts.enter(self.host(number))
        if number >= self.case.servers:
            return self._work(number - self.case.servers)
        self._serve(number, incarnation)
        return None

    def host(self, number: int) -> int:
        """Of this server or worker."""
        return number - self.case.servers if self.case.colocated and number >= self.case.servers else number

    def _address(self, host: int) -> str:
        return "127.0.0.1" if self._hosts is None else self._hosts.address(host)

    def _publish(self, host: int, address: str, port: int) -> None:
        self._ports[host] = port

    def _resolve(self, host: int) -> tuple[str, int] | None:
        port = self._ports[host]
        return (self._address(host), port) if port else None

    def _config(self, host: int) -> ExchangeConfig:
        case, fault = self.case, self._fault
        return ExchangeConfig(
            exchange=case.exchange,  # type: ignore[arg-type]
            num_workers=case.workers,
            num_backup_workers=case.backup if case.exchange in ("servers", "majority") else None,
            num_servers=case.servers or 1,
            listen_host=self._address(host),
            step_timeout_s=case.step_timeout_s if fault is None else fault.step_timeout_s,
            checkpoint_every_steps=fault.checkpoint_every_steps if fault is not None and fault.needs_checkpoints else 0,
        )

    def _training(self, host: int) -> dict[str, Any]:
        """Of who takes the optimizer's steps and ends the run."""
        last_step = self.case.last_step
        return {
            "initial_parameters": torch.zeros(self.case.numel),
            "optimizer_config": OptimizerConfig(optimizer="rmsprop"),
            "exchange_config": self._config(host),
            "should_stop": lambda step, data_points: "measured" if step >= last_step else None,
        }

    def _serve(self, shard: int, incarnation: int) -> None:
        if self._others is not None and self._others.serve is not None:
            self._others.serve(shard, self.case, lambda number: self._address(self.host(number)))
            return
        meet: dict[str, Any] = {"secret": self._secret, "resolve": self._resolve}
        here = {"publish_address": partial(self._publish, shard), "checkpoint_dir": self._folder} | meet
        training = self._training(shard)
        ParameterServer(shard=shard, plan=self._plan, incarnation=incarnation, **here, **training).run()

    def _exchange(self, rank: int) -> GradientExchange:
        if self._others is not None:
            return self._others.join(rank, self.case, lambda number: self._address(self.host(number)))
        host, layout = self.host(rank + self.case.servers), self._plan.layout
        meet: dict[str, Any] = {"secret": self._secret, "resolve": self._resolve}
        publish = partial(self._publish, 0)
        if self.case.servers:
            return ServersExchange(worker=rank, plan=self._plan, exchange_config=self._config(host), **meet)
        if self.case.exchange == "majority":
            return MajorityExchange(rank=rank, layout=layout, publish_address=publish, **meet, **self._training(host))
        collective = TorchCollective.join(rank, self._config(host), publish=publish, **meet)
        return AllReduceExchange(collective=collective, layout=layout, **self._training(host))

    def _work(self, rank: int) -> Worked:
        exchange = self._exchange(rank)
        ended, pulls = "", list[tuple[int, float]]()
        accepted: list[bool] = []
        began: Snapshot | None = None
        try:
            while True:
                pull = exchange.pull()
                pulls.append((pull.step, time.perf_counter()))
                if rank == 0:
                    self._reached.value = pull.step
                if rank == 0 and began is None and pull.step >= self.case.warm_up:
                    began = self.processes.snapshot()
                self._compute(rank, pull.step)
                accepted.append(exchange.push(self._gradient, pull.step, data_points=1).accepted)
        except RunStopped as stopped:
            ended = str(stopped)
        except ParamServersError as error:
            if self._fault is None:
                raise
            ended = told(error)
        ended_s = time.perf_counter()
        load = self.processes.snapshot() - began if began else None
        moved = sum(exchange.bytes_moved) if isinstance(exchange, ServersExchange) else None
        exchange.close()
        return Worked(rank, pulls, accepted, ended_s, moved, ended, load)


# -- the bounds, and the figures beside them -----------------------------------------------------------------------


def dedicated_servers_s(model_bytes: float, workers: int, servers: int, bytes_per_s: float) -> float:
    """max(M/B, nM/(kB)), a worker's own link or a server's: the least time of a step on the wire (BytePS, OSDI'20) for
    M bytes of parameters, n workers, k servers and hosts of B bytes/s that can send and receive at once."""
    return max(model_bytes / bytes_per_s, workers * model_bytes / (servers * bytes_per_s))


def ring_s(model_bytes: float, workers: int, bytes_per_s: float) -> float:
    """2(n−1)M/(nB): ring all-reduce, or servers colocated on all workers."""
    return 2 * (workers - 1) * model_bytes / (workers * bytes_per_s)


def measure(case: Case, compute_ms: float = 0.0) -> dict[str, Any]:
    """One line of the benchmark."""
    measured = run(case, lambda worker, step: time.sleep(compute_ms / 1e3) if compute_ms else None)
    # Of a worker whose gradients mostly counted: one that is left out never pulls those of some steps.
    steadiest = max(measured.workers, key=lambda worker: len(worker.pulls))
    pulls = [pull for pull in steadiest.pulls if pull[0] >= case.warm_up]
    times = [(end - start) / (last - first) for (first, start), (last, end) in itertools.pairwise(pulls)]
    median_s, model_bytes = statistics.median(times), 4 * case.numel
    ring_bytes = 4 * (case.workers - 1) * model_bytes / case.workers * case.last_step
    moved = sum(ring_bytes if worker.bytes_moved is None else worker.bytes_moved for worker in measured.workers)
    line = {
        **case._asdict(),
        "compute_ms": compute_ms,
        "step_ms": 1e3 * median_s,
        "step_p90_ms": 1e3 * float(np.quantile(times, 0.9)),
        "bytes_per_step": moved / case.last_step,
        "cpu_s_per_gb": measured.cpu_s / (moved / 1e9) if moved else None,
    }
    if case.rate_mbit:
        bytes_per_s = case.rate_mbit * 1e6 / 8
        bound_s = ring_s(model_bytes, case.workers, bytes_per_s)
        if case.servers:
            bound_s = dedicated_servers_s(model_bytes, case.workers, case.servers, bytes_per_s)
        if case.exchange == "async":  # each gradient is a step of its own
            bound_s /= case.workers
        line["congestion_control"] = measured.congestion_control
        line |= {"bound_ms": 1e3 * bound_s, "over_bound": median_s / bound_s}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()}


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All combinations asked for."""
    servers = options.servers if options.exchange in ("servers", "async") else [0]
    for megabytes, n, k in itertools.product(options.megabytes, options.workers, servers):
        yield Case(options.exchange, megabytes, n, options.backup, k, options.rate_mbit, options.steps)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", default="servers", choices=["servers", "async", "allreduce", "majority"])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.33], help="M, bytes of the parameters / 1e6")
    parser.add_argument("--workers", type=int, nargs="+", default=[4], help="n, backup workers included")
    parser.add_argument("--backup", type=int, default=0, help="b")
    parser.add_argument("--servers", type=int, nargs="+", default=[1], help="k")
    parser.add_argument("--rate-mbit", type=float, default=0, help="per host and direction; 0: loopback, no limit")
    parser.add_argument("--compute-ms", type=float, default=0, help="that workers sleep instead of computing")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args(arguments)
    if options.backup and options.exchange not in ("servers", "majority"):
        parser.error(f"--exchange {options.exchange} knows no backup workers: servers and majority do")
    torch.set_num_threads(1)
    for case in cases(options):
        print(json.dumps(measure(case, options.compute_ms)), flush=True)


if __name__ == "__main__":
    main()
