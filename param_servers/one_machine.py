"""A whole run of servers and workers as processes of this machine, to try things out and to learn how the parts fit."""

import gc
import multiprocessing
import os
import secrets
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from param_servers.checkpoint.files import Checkpoint, find_newest, load_checkpoint
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import RunBroken, RunStopped
from param_servers.exchange import GradientExchange
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer, ShouldStop

Worker = Callable[[GradientExchange, int], None]
"""(exchange, rank): pulls and pushes until RunStopped, which is caught for it."""


def run_on_one_machine(
    worker: Worker,
    *,
    plan: ShardPlan,
    initial_parameters: Tensor,
    optimizer_config: OptimizerConfig,
    exchange_config: ExchangeConfig,
    should_stop: ShouldStop,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
) -> Checkpoint:
    """Start `num_servers` servers and `num_workers` workers, wait for the end, return what was learned.

    The processes are forked, so `worker` may be any function; what it changes is lost with its process. Each has one
    torch thread, and must keep to it: of torch's other threads a fork has none, and would wait for them for ever.
    Workers that die are not started again: the run goes on without them as `exchange_config` says.

    Args:
        plan, initial_parameters, optimizer_config, exchange_config, should_stop, on_event: see `ParameterServer`.

    Raises:
        RunBroken: a server failed (its process has printed why); or it did not begin to listen, did not
            end when it should have, or a worker did not: these are named and killed.
    """
    context, secret, parent = multiprocessing.get_context("fork"), secrets.token_bytes(32), os.getpid()

    def stop_or_orphaned(step: int, data_points: int) -> str | None:
        return "the process that started this run is gone" if os.getppid() != parent else should_stop(step, data_points)

    with TemporaryDirectory() as name:
        folder = Path(name)

        def address_of(shard: int) -> tuple[str, int] | None:
            if (folder / "ended").exists():
                raise RunStopped("all servers have ended")
            path = folder / f"server-{shard}"
            host, _, port = path.read_text().partition(" ") if path.exists() else ("", "", "")
            return (host, int(port)) if host else None

        def serve(shard: int) -> None:
            def publish(host: str, port: int) -> None:
                (folder / f"new.{shard}").write_text(f"{host} {port}")
                (folder / f"new.{shard}").rename(folder / f"server-{shard}")

            ParameterServer(
                shard=shard,
                plan=plan,
                initial_parameters=initial_parameters,
                optimizer_config=optimizer_config,
                exchange_config=exchange_config,
                resolve=address_of,
                secret=secret,
                publish_address=publish,
                checkpoint_dir=folder / "checkpoints",
                should_stop=stop_or_orphaned,
                on_event=on_event,
            ).run()

        def work(rank: int) -> None:
            exchange = ServersExchange(
                worker=rank, plan=plan, exchange_config=exchange_config, resolve=address_of, secret=secret
            )
            try:
                worker(exchange, rank)
            except RunStopped:
                pass
            finally:
                exchange.close()

        def alone(main: Callable[[int], None], rank: int) -> None:
            gc.freeze()  # what it inherited is its parent's to clean up: threads of C++ would abort this process
            torch.set_num_threads(1)
            main(rank)

        servers = [context.Process(target=alone, args=(serve, shard)) for shard in range(exchange_config.num_servers)]
        workers = [context.Process(target=alone, args=(work, rank)) for rank in range(exchange_config.num_workers)]
        _run(servers, workers, folder, exchange_config)
        path = find_newest(folder / "checkpoints")
        if path is None:
            raise RunBroken("the run ended before its first step")
        return load_checkpoint(path)


def train_on_one_machine(
    model: nn.Module,
    loss: Callable[[nn.Module, int, int], Tensor],
    optimizer_config: OptimizerConfig,
    exchange_config: ExchangeConfig,
    *,
    data_points: int,
    should_stop: ShouldStop,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
) -> int:
    """Train a module with `run_on_one_machine`; it then holds what was learned. The number of steps that took.

    Args:
        model: all its parameters are trained; buffers (of batch norm, say) are each worker's own and not brought back.
        loss: (model, rank, step) -> a scalar, the mean over this worker's batch. It is called in the workers'
            processes, of one thread each, where torch's generator is seeded with the rank.
        optimizer_config, exchange_config, should_stop, on_event: see `ParameterServer`.
        data_points: samples in one batch; learning-rate schedules and `should_stop` count them.

    Raises:
        RunBroken: see `run_on_one_machine`.
    """
    plan = plan_shards(FlatLayout.of_module(model), exchange_config.num_servers, exchange_config.sharding)
    layout = plan.layout

    def worker(exchange: GradientExchange, rank: int) -> None:
        torch.manual_seed(rank)
        while True:
            parameters, step, _ = exchange.pull()
            layout.load(model, parameters)
            exchange.push(layout.gradient(model, loss(model, rank, step)), step, data_points)

    learned = run_on_one_machine(
        worker,
        plan=plan,
        initial_parameters=layout.flatten(model),
        optimizer_config=optimizer_config,
        exchange_config=exchange_config,
        should_stop=should_stop,
        on_event=on_event,
    )
    learned.layout.load(model, learned.parameters)
    return learned.step


def _run(servers: Sequence[ForkProcess], workers: Sequence[ForkProcess], folder: Path, config: ExchangeConfig) -> None:
    """Start all, wait for the servers, tell workers that come late, wait for them; nobody is left behind."""
    try:
        for process in [*servers, *workers]:
            process.start()
        _wait_for_servers(servers, workers, folder, config)
        (folder / "ended").touch()
        drain_s = config.timeouts.drain_s
        late = _still_alive(workers, drain_s)
    finally:
        for process in [*servers, *workers]:
            if process.is_alive():
                process.kill()
                process.join()
    failed = [shard for shard, process in enumerate(servers) if process.exitcode != 0]
    if failed:
        raise RunBroken(f"server {_names(failed)} failed")
    if late:
        raise RunBroken(f"worker {_names(late)} did not end within {drain_s:g} s of the run's end")


def _wait_for_servers(
    servers: Sequence[ForkProcess], workers: Sequence[ForkProcess], folder: Path, config: ExchangeConfig
) -> None:
    """Until all have ended. How long a run trains is the user's affair, but not how long it takes to begin and to end.

    Raises:
        RunBroken: one did not begin to listen; or when all workers or another server had ended, it did
            not within all its own timeouts: then it hangs.
    """
    start_s = config.timeouts.start_s
    give_up_s = time.monotonic() + start_s
    while deaf := [shard for shard in range(len(servers)) if not (folder / f"server-{shard}").exists()]:
        if any(process.exitcode is not None for process in servers):
            break
        if time.monotonic() > give_up_s:
            raise RunBroken(f"server {_names(deaf)} did not listen within {start_s:g} s")
        wait([process.sentinel for process in servers], 0.05)
    working = {process.sentinel for process in workers}
    while working and all(process.is_alive() for process in servers):
        working.difference_update(wait([*working, *(process.sentinel for process in servers)]))
    patience_s = config.timeouts.servers_end_s
    why = "all workers" if all(process.is_alive() for process in servers) else "another server"
    if late := _still_alive(servers, patience_s):
        raise RunBroken(f"server {_names(late)} did not end within {patience_s:g} s of the end of {why}")


def _still_alive(processes: Sequence[ForkProcess], timeout_s: float) -> list[int]:
    """Which of them have not ended when so much time is over."""
    give_up_s = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, give_up_s - time.monotonic()))
    return [rank for rank, process in enumerate(processes) if process.is_alive()]


def _names(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
