"""Ready-made ways to run servers and workers.

`serve` and `connect`: at addresses that all know. A module, an optimizer and an address are all that they need. Where
servers come and go (a cluster's ranks, fixed by nobody), use `ParameterServer` and `ServersExchange` themselves: they
ask again for an address before each attempt.

`train_on_one_machine`: a whole run as processes of this machine, to try things out and to learn how the parts fit.
"""

import contextlib
import gc
import mmap
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, RunBroken, RunStopped
from param_servers.exchange import GradientExchange, OnEvent, ShouldStop, never, unread, whole
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.optim import ClippedExchange
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer
from param_servers.timeouts import NAP_S, Timeouts
from param_servers.wire.handshake import check_secret
from param_servers.wire.tcp_sockets import listen_address

Address = tuple[str, int]
"""Host and port."""


def serve(
    module: nn.Module,
    optimizer_config: OptimizerConfig,
    address: Address | Sequence[Address],
    *,
    shard: int = 0,
    steps: int | None = None,
    exchange_config: ExchangeConfig | None = None,
    secret: bytes | None = None,
    **options: Any,
) -> str:
    """Be a parameter server until the run ends; the reason why it ended. One call in one process for each address.

    Args:
        module: its parameters are those of step 0, the same in all servers; it is not changed.
        address: where this server listens; of several servers, all their addresses in order.
        shard: which of them this is.
        steps: after so many the run ends; None: `should_stop` says when, or Ctrl-C at server 0.
        exchange_config: how many workers, backup workers, how patient; None: one worker, and the defaults.
        secret: at least 16 bytes that every process of the run knows; None: `shared_secret`.
        options: further ones of `ParameterServer`: should_stop, checkpoint_dir, on_event, …

    Raises: as `ParameterServer.run`.
    """
    addresses, config, plan = _run_of(module, address, exchange_config)
    if not whole(shard, "shard") < len(addresses):
        raise ConfigError(f"there is no address of shard {shard}: {len(addresses)} given")
    host, port = addresses[shard]
    if steps is not None:
        last_step = whole(steps, "steps")
        if "should_stop" in options:
            raise ConfigError("steps and should_stop both say when the run ends: give one of them")
        options["should_stop"] = lambda step, data_points: f"{last_step} steps" if step >= last_step else None
    with _asked_by_ctrl_c(shard) as interrupted:
        asked: ShouldStop = options.pop("should_stop", never)
        return ParameterServer(
            shard=shard,
            plan=plan,
            initial_parameters=plan.layout.flatten(module),
            optimizer_config=optimizer_config,
            exchange_config=replace(config, listen_host=host, interface=None, port=port),
            resolve=lambda server: addresses[server],
            secret=shared_secret() if secret is None else secret,
            should_stop=lambda step, data_points: interrupted() or asked(step, data_points),
            **options,
        ).run()


@contextlib.contextmanager
def _asked_by_ctrl_c(shard: int) -> Iterator[Callable[[], str | None]]:
    """Within, the first Ctrl-C of a main thread is a request to end the run, which is what is given tells: "Ctrl-C", or
    None. Server 0 obeys it; the others, of the same terminal, go on until it has ended the run. The second one leaves.
    """
    pressed: list[int] = []

    def press(signum: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(signum)
        how = "ending the run with a checkpoint" if shard == 0 else "server 0 ends the run"
        print(f"server {shard}: {how}; once more to leave at once", file=sys.stderr)

    takes_it = threading.current_thread() is threading.main_thread()
    if not takes_it or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: "Ctrl-C" if pressed else None
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def connect(
    module: nn.Module,
    address: Address | Sequence[Address],
    *,
    worker: int = 0,
    optimizer_config: OptimizerConfig | None = None,
    exchange_config: ExchangeConfig | None = None,
    secret: bytes | None = None,
) -> GradientExchange:
    """A worker's exchange with the servers at these addresses; all but `worker`, its rank, as in `serve`.

    Gradients and parameters are [P] in the order of `module.parameters()`.

    Args:
        optimizer_config: with it each gradient is clipped, in place, as it says; without it none is.
    """
    addresses, config, plan = _run_of(module, address, exchange_config)
    exchange = ServersExchange(
        worker=worker,
        plan=plan,
        exchange_config=config,
        resolve=lambda server: addresses[server],
        secret=shared_secret() if secret is None else secret,
    )
    return exchange if optimizer_config is None else ClippedExchange(exchange, plan.layout, optimizer_config)


def shared_secret() -> bytes:
    """32 bytes in `~/.cache/param_servers/secret`, which only this user can read; drawn when they are first wanted.

    They join processes of one user that see one home. Others (containers, hosts without a shared home) are given one.

    Raises ConfigError: it cannot be kept there, others may read it, or it is too short.
    """
    try:
        path = Path.home() / ".cache" / "param_servers" / "secret"
    except RuntimeError as error:
        raise ConfigError(f"there is no home to keep a secret in ({error}): give one (secret=)") from error
    try:
        if not path.exists():
            _draw_secret(path)
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others than you may read or write {path}: chmod 600 it, or remove it")
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the secret cannot be kept in {path}: {error.strerror}: give one (secret=)") from error
    try:
        check_secret(secret)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return secret


def _draw_secret(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = path.with_name(f"secret.{os.getpid()}-{secrets.token_hex(4)}")
    drawn.touch(mode=0o600, exist_ok=False)
    with drawn.open("wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())  # an empty one, after a power cut, would be refused for ever
    try:
        os.link(drawn, path)  # the first process wins, and nobody reads half a secret
    except FileExistsError:
        pass
    finally:
        drawn.unlink()


def _is_address(each: Any) -> bool:
    types = [type(part) for part in each] if isinstance(each, (tuple, list)) else []
    return types == [str, int] and 0 <= each[1] < 1 << 16


def _run_of(
    module: nn.Module, address: Address | Sequence[Address], config: ExchangeConfig | None
) -> tuple[list[Address], ExchangeConfig, ShardPlan]:
    if not isinstance(address, (tuple, list)) or not address:
        raise ConfigError(f"a run of servers needs the address of each of them, got {address!r}")
    given: Sequence[Any] = [address] if isinstance(address[0], str) else address
    wrong = [each for each in given if not _is_address(each)]
    if wrong:
        raise ConfigError(f'an address is (host, port), as ("10.0.0.1", 7077), not {wrong[0]!r}')
    addresses = [(str(host), int(port)) for host, port in given]
    config = replace((config or ExchangeConfig()).of_servers(), num_servers=len(addresses))
    return addresses, config, plan_shards(FlatLayout.of_module(module), len(addresses))


def train_on_one_machine(
    model: nn.Module,
    loss: Callable[[nn.Module, int, int], Tensor],
    optimizer_config: OptimizerConfig,
    exchange_config: ExchangeConfig,
    *,
    data_points: int,
    should_stop: ShouldStop,
    on_event: OnEvent = unread,
) -> int:
    """Train a module with `num_servers` servers and `num_workers` workers; it then holds what was learned. The number
    of steps that took.

    The processes are forked, so `loss` may be any function; what it changes is lost with its process. Each has one
    torch thread, and must keep to it: of torch's other threads a fork has none, and would wait for them for ever.
    Workers that die are not started again: the run goes on without them as `exchange_config` says.

    Args:
        model: all its parameters are trained; buffers (of batch norm, say) are each worker's own and not brought back.
        loss: (model, rank, step) -> a scalar, the mean over this worker's batch. It is called in the workers'
            processes, where torch's generator is seeded with the rank.
        optimizer_config, exchange_config, should_stop, on_event: see `ParameterServer`; ports are chosen here.
        data_points: samples in one batch; learning-rate schedules and `should_stop` count them.

    Raises:
        ConfigError: the exchange has no servers.
        RunBroken: a server or all workers failed (their processes have printed why); or a server did not end when it
            should have, or a worker did not: these are named and killed.
    """
    exchange_config = replace(exchange_config.of_servers(), port=0)  # several on one host; nobody else dials them
    plan = plan_shards(FlatLayout.of_module(model), exchange_config.num_servers)
    layout, initial_parameters = plan.layout, plan.layout.flatten(model)
    context, secret, parent = multiprocessing.get_context("fork"), secrets.token_bytes(32), os.getpid()
    host = listen_address(exchange_config.listen_host, exchange_config.interface)
    # without a lock, which who is killed might keep, and without /dev/shm, which a container may lack
    shared = memoryview(mmap.mmap(-1, 4 * (2 + exchange_config.num_servers))).cast("i")
    ended, given_up, ports = shared[:1], shared[1:2], shared[2:]

    def stop_or_orphaned(step: int, data_points: int) -> str | None:
        if given_up[0]:
            return "all workers or a server have failed, and none is started again here"
        return "the process that started this run is gone" if os.getppid() != parent else should_stop(step, data_points)

    def address_of(shard: int) -> tuple[str, int] | None:
        if ended[0]:
            raise RunStopped("all servers have ended")
        return (host, ports[shard]) if ports[shard] else None

    def serve(shard: int) -> None:
        with contextlib.suppress(RunStopped):  # another server has failed, and is dialled no more
            ParameterServer(
                shard=shard,
                plan=plan,
                initial_parameters=initial_parameters,
                optimizer_config=optimizer_config,
                exchange_config=exchange_config,
                resolve=address_of,
                secret=secret,
                publish_address=lambda _, port: ports.__setitem__(shard, port),
                checkpoint_dir=checkpoints,
                should_stop=stop_or_orphaned,
                on_event=on_event,
            ).run()

    def work(rank: int) -> None:
        torch.manual_seed(rank)
        servers = ServersExchange(
            worker=rank, plan=plan, exchange_config=exchange_config, resolve=address_of, secret=secret
        )
        exchange = ClippedExchange(servers, layout, optimizer_config)
        with contextlib.suppress(RunStopped), contextlib.closing(exchange):
            while True:
                parameters, step, _ = exchange.pull()
                layout.load(model, parameters)
                exchange.push(layout.gradient(model, loss(model, rank, step)), step, data_points)

    def alone(main: Callable[[int], None], rank: int) -> None:
        gc.freeze()  # what it inherited is its parent's to clean up: threads of C++ would abort this process
        torch.set_num_threads(1)
        main(rank)

    servers = [context.Process(target=alone, args=(serve, shard)) for shard in range(exchange_config.num_servers)]
    workers = [context.Process(target=alone, args=(work, rank)) for rank in range(exchange_config.num_workers)]
    with TemporaryDirectory() as folder:
        checkpoints = Path(folder)
        _run(
            servers,
            workers,
            lambda: given_up.__setitem__(0, 1),
            lambda: ended.__setitem__(0, 1),
            exchange_config.timeouts,
        )
        path = find_newest(checkpoints)
        if path is None:
            raise RunBroken("the run ended before its first step")
        learned = load_checkpoint(path)
    learned.layout.load(model, learned.parameters)
    return learned.step


def _run(
    servers: Sequence[ForkProcess],
    workers: Sequence[ForkProcess],
    give_up: Callable[[], None],
    end: Callable[[], None],
    timeouts: Timeouts,
) -> None:
    """Start all, wait for the servers, `end` the wait of workers that come late, wait for them; nobody is left behind.
    Where all workers or a server have failed, which nobody starts again, nobody is waited for: `give_up`.

    How long a run trains is the user's affair, but not how long it takes to end: a server that has not when all
    workers or another server have ended, and its own timeouts are over, hangs.
    """
    try:
        for process in [*servers, *workers]:
            process.start()
        while all(process.is_alive() for process in servers) and any(process.is_alive() for process in workers):
            _wait_for_one([*servers, *workers])
        early = all(process.is_alive() for process in servers)
        why = "all workers" if early else "another server"
        if given_up := all(process.exitcode for process in workers) or any(process.exitcode for process in servers):
            give_up()
            end()
        if late := _still_alive(servers, timeouts.servers_end_s):
            hangs = f"server {late} did not end within {timeouts.servers_end_s:g} s of the end of {why}"
            raise RunBroken("; ".join([*_failed(worker=workers), hangs]))
        end()
        late = _still_alive(workers, timeouts.drain_s)
    finally:
        for process in [*servers, *workers]:
            if process.is_alive():
                process.kill()
                process.join()
    if given_up or any(process.exitcode for process in servers):
        left = ["all workers ended before the run did"] if early and not any(p.exitcode for p in workers) else []
        raise RunBroken("; ".join([*left, *_failed(worker=workers, server=servers)]))
    if late:
        raise RunBroken(f"worker {late} did not end within {timeouts.drain_s:g} s of the run's end")


def _failed(**roles: Sequence[ForkProcess]) -> list[str]:
    """Who of each role has failed: "worker 0, 2 failed"."""
    return [
        f"{role} {', '.join(ranks)} failed"
        for role, processes in roles.items()
        if (ranks := [str(rank) for rank, process in enumerate(processes) if process.exitcode])
    ]


def _wait_for_one(processes: Sequence[ForkProcess]) -> None:
    """Until one of those alive ends, or for a while: a sentinel tells neither where a child of it holds it open, nor
    the exit code, which comes a moment later."""
    wait([process.sentinel for process in processes if process.is_alive()], NAP_S)


def _still_alive(processes: Sequence[ForkProcess], timeout_s: float) -> str:
    give_up_s = time.monotonic() + timeout_s
    while any(process.is_alive() for process in processes) and time.monotonic() < give_up_s:
        _wait_for_one(processes)
    return ", ".join(str(rank) for rank, process in enumerate(processes) if process.is_alive())
