"""Who may still join, where a server listens, and who finds nobody any more."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from param_servers.client import ServersExchange
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, Refused, RunStopped
from param_servers.interfaces import listen_address
from param_servers.layout import FlatLayout
from param_servers.majority import MajorityExchange
from param_servers.server import ParameterServer
from param_servers.sharding import plan_shards

SECRET = b"s" * 32
PLAN = plan_shards(FlatLayout.of({"w": (8,)}), 1)


def exchange(config: ExchangeConfig, resolve: Callable[[int], tuple[str, int] | None]) -> ServersExchange:
    return ServersExchange(worker=0, plan=PLAN, exchange_config=config, resolve=resolve, secret=SECRET)


def serve(config: ExchangeConfig, addresses: dict[int, tuple[str, int]], end: threading.Event) -> ParameterServer:
    return ParameterServer(
        shard=0,
        plan=PLAN,
        initial_parameters=torch.zeros(8),
        optimizer_config=OptimizerConfig(),
        exchange_config=config,
        resolve=addresses.get,
        secret=SECRET,
        publish_address=lambda host, port: addresses.update({0: (host, port)}),
        should_stop=lambda step, data_points: "enough" if end.is_set() else None,
    )


def test_a_worker_that_comes_after_the_end_leaves_at_once_with_the_reason() -> None:
    def resolve(shard: int) -> tuple[str, int] | None:
        raise RunStopped("score 300 reached")

    worker = exchange(ExchangeConfig(exchange="servers", join_timeout_s=300), resolve)
    start_s = time.monotonic()
    with pytest.raises(RunStopped, match="score 300 reached"):
        worker.pull()
    assert time.monotonic() - start_s < 100
    worker.close()


def test_a_server_that_has_ended_turns_newcomers_away() -> None:
    config, addresses, end = ExchangeConfig(exchange="servers", join_timeout_s=300), {}, threading.Event()
    server = serve(config, addresses, end)
    core = server._core
    address = server._hub.listen("127.0.0.1")
    core.attach(server._hub)
    core.node.ended = ("enough", False)
    newcomer = exchange(config, lambda shard: address)
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            server._hub.poll(0.01)

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        with pytest.raises(Refused, match="the run has ended: enough"):
            newcomer.pull()
    finally:
        stop.set()
        answering.join()
        server._hub.shut()
        core.close()
        newcomer.close()


def test_a_server_listens_on_the_interface_that_was_chosen_and_announces_it() -> None:
    config = ExchangeConfig(exchange="servers", interface="lo", listen_host="127.0.0.2", join_timeout_s=30)
    addresses: dict[int, tuple[str, int]] = {}
    end = threading.Event()
    server = serve(config, addresses, end)
    running = threading.Thread(target=server.run)
    running.start()
    worker = exchange(config, addresses.get)
    try:
        assert worker.pull().step == 0
        assert addresses[0][0] == "127.0.0.1"  # lo's address, not the listen_host
    finally:
        end.set()
        running.join(30)
        worker.close()


def test_an_interface_that_is_not_there_is_one_line_that_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"network interface nope0 has no IPv4 address .*interfaces here: .*lo"):
        listen_address("127.0.0.1", "nope0")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_address_that_others_would_dial_on_themselves_is_refused(host: str) -> None:
    config = ExchangeConfig(exchange="servers", listen_host=host)
    with pytest.raises(ConfigError, match=r"no address that others could dial: .*interface"):
        serve(config, {}, threading.Event())
    with pytest.raises(ConfigError, match="no address that others could dial"):
        majority(listen_host=host)
    assert listen_address(host, "lo") == "127.0.0.1"


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"secret": b"fifteen bytes.."}, "secret must have at least 16 bytes, got 15"),
        ({"initial_parameters": torch.zeros(9)}, r"shape \[8\] is needed, got \[9\]"),
        ({"shard": 1}, "there is no shard 1 in a plan of 1"),
        ({"shard": -1}, "there is no shard -1 in a plan of 1"),
    ],
)
def test_a_server_that_could_not_work_is_refused_at_once(wrong: dict[str, Any], line: str) -> None:
    given = {"shard": 0, "initial_parameters": torch.zeros(8), "secret": SECRET} | wrong
    config = ExchangeConfig(exchange="servers")
    with pytest.raises(ConfigError, match=line):
        ParameterServer(
            plan=PLAN, optimizer_config=OptimizerConfig(), exchange_config=config, resolve=lambda shard: None, **given
        )


def test_a_secret_that_could_be_guessed_is_refused_by_workers_and_ranks() -> None:
    config = ExchangeConfig(exchange="servers")
    with pytest.raises(ConfigError, match="secret must have at least 16 bytes, got 1"):
        ServersExchange(worker=0, plan=PLAN, exchange_config=config, resolve=lambda shard: None, secret=b"x")
    with pytest.raises(ConfigError, match="secret must have at least 16 bytes, got 0"):
        majority(secret=b"")


def majority(secret: bytes = SECRET, **settings: Any) -> MajorityExchange:
    return MajorityExchange(
        rank=1,
        layout=PLAN.layout,
        initial_parameters=torch.zeros(8),
        optimizer_config=OptimizerConfig(),
        exchange_config=ExchangeConfig(exchange="majority", num_workers=2, **settings),
        secret=secret,
        resolve=lambda rank: None,
    )
