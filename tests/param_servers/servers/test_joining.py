"""Who may still join, where a server listens, and who finds nobody any more."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, ParamServersError, Refused, RunStopped
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.majority.exchange import MajorityExchange
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer
from param_servers.wire.frames import Event, Joined, Left
from param_servers.wire.handshake import Hello, Role
from param_servers.wire.hub import Hub
from param_servers.wire.tcp_sockets import listen_address
from tests.waiting import wait_until

SECRET = b"s" * 32
PLAN = plan_shards(FlatLayout.of({"w": (8,)}), 1)
RMSPROP = OptimizerConfig()
PLAN_OF_TWO = plan_shards(FlatLayout.of({"w": (8,)}), 2)


def exchange(
    config: ExchangeConfig, resolve: Callable[[int], tuple[str, int] | None], plan: ShardPlan = PLAN
) -> ServersExchange:
    return ServersExchange(worker=0, plan=plan, exchange_config=config, resolve=resolve, secret=SECRET)


def serve(
    config: ExchangeConfig,
    addresses: dict[int, tuple[str, int]],
    end: threading.Event,
    plan: ShardPlan = PLAN,
    shard: int = 0,
    optimizer: OptimizerConfig = RMSPROP,
    incarnation: int = 0,
) -> ParameterServer:
    return ParameterServer(
        shard=shard,
        plan=plan,
        initial_parameters=torch.zeros(plan.layout.numel),
        optimizer_config=optimizer,
        exchange_config=config,
        resolve=addresses.get,
        secret=SECRET,
        incarnation=incarnation,
        publish_address=lambda host, port: addresses.update({shard: (host, port)}),
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


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, tuple[str, int]]]:
    """The address of a server 0 (of two) that says its last words until the test is over."""
    monkeypatch.setattr("param_servers.wire.hub.HANDSHAKE_S", 60.0)  # of who says nothing
    config = ExchangeConfig(exchange="servers", num_servers=2, join_timeout_s=300)
    server = serve(config, {}, threading.Event(), PLAN_OF_TWO)
    address = server._hub.listen("127.0.0.1")
    server.node.ended = ("score 300 reached", False)
    with socket.create_connection(address):  # says nothing: the hub waits for it
        while not server._hub._passing:
            server._hub.poll(0.01)
        leaving = threading.Thread(target=server._hub.drain, args=(60.0, server.node.tell_end))
        leaving.start()
        yield {0: address}
    leaving.join(60)
    server.close()
    assert not leaving.is_alive()


def test_a_worker_that_dials_during_a_servers_last_words_hears_them(ended: dict[int, tuple[str, int]]) -> None:
    worker = exchange(ExchangeConfig(exchange="servers", join_timeout_s=300), ended.get, PLAN_OF_TWO)
    with pytest.raises(RunStopped, match="score 300 reached"):
        worker.pull()
    worker.close()


def test_a_server_that_dials_during_server_0s_last_words_ends_as_the_run_did(ended: dict[int, tuple[str, int]]) -> None:
    config = ExchangeConfig(exchange="servers", num_servers=2, join_timeout_s=300)
    server = serve(config, ended, threading.Event(), PLAN_OF_TWO, shard=1)
    assert server.run() == "score 300 reached"


def test_a_server_says_where_it_listens_again_when_server_0_has_come_back_with_a_new_board() -> None:
    config = ExchangeConfig(exchange="servers", num_servers=2, join_timeout_s=60, reconnect_timeout_s=60)
    addresses: dict[int, tuple[str, int]] = {}
    end, leave = threading.Event(), threading.Event()
    other = serve(config, addresses, end, PLAN_OF_TWO, shard=1)
    running = threading.Thread(target=other.run)
    running.start()
    first = serve(config, addresses, leave, PLAN_OF_TWO)
    first._publish_address(*first._hub.listen("127.0.0.1"))
    first.begin()
    try:
        while other.node.term < 1:
            for event in first._hub.poll(0.05):
                first.handle(event)
        addresses.clear()
        first.close()  # as if killed
        again = serve(config, addresses, end, PLAN_OF_TWO)
        again_running = threading.Thread(target=again.run)
        again_running.start()
        wait_until(lambda: set(addresses) == {0, 1}, "both addresses")
    finally:
        end.set()
        running.join(60)
        again_running.join(60)
    assert not running.is_alive() and not again_running.is_alive()


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
        worker.close()  # or the server lingers for it
        running.join(30)
    assert not running.is_alive()


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


class Serving:
    """The servers of one worker, or some, each running in a thread, and what they say."""

    def __init__(
        self,
        num_workers: int = 1,
        plan: ShardPlan = PLAN,
        optimizer: OptimizerConfig = RMSPROP,
        step_timeout_s: float = 20.0,
    ) -> None:
        self.config = ExchangeConfig(
            exchange="servers",
            num_workers=num_workers,
            num_servers=plan.num_shards,
            join_timeout_s=20,
            step_timeout_s=step_timeout_s,
        )
        self.plan = plan
        self.addresses: dict[int, tuple[str, int]] = {}
        self.end = threading.Event()
        self.servers = [
            serve(self.config, self.addresses, self.end, plan, shard, optimizer) for shard in range(plan.num_shards)
        ]
        self.threads = [threading.Thread(target=server.run) for server in self.servers]

    def __enter__(self) -> "Serving":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()

    def worker(self, **options: Any) -> ServersExchange:
        given = {"worker": 0, "plan": self.plan, "exchange_config": self.config, "secret": SECRET} | options
        return ServersExchange(resolve=self.addresses.get, **given)

    def knock(self, hello: Hello) -> Left | Joined:
        """How the server answers to this."""
        hub = Hub(SECRET, lambda peer, header: memoryview(bytearray(header.length)))
        wait_until(lambda: 0 in self.addresses, "the server")
        hub.dial(self.addresses[0], hello)
        events: list[Event] = []
        try:
            wait_until(lambda: events.extend(hub.poll(0.05)) or events, "its answer")
        finally:
            hub.shut()
        assert isinstance(events[0], Left | Joined)
        return events[0]

    def trains(self, worker: ServersExchange) -> bool:
        receipts = [worker.push(torch.ones(8), worker.pull().step, 1) for _ in range(3)]
        return all(receipt.accepted for receipt in receipts)


def test_a_worker_that_is_started_again_takes_part_without_anybody_numbering_its_lives() -> None:
    with Serving() as run:
        for _ in range(3):
            worker = run.worker()
            assert run.trains(worker)
            worker.close()


@pytest.mark.parametrize(("dtype", "device"), [(torch.float64, "cpu"), (torch.float32, "meta")])
def test_other_defaults_of_torch_in_a_worker_s_program_change_nothing(dtype: torch.dtype, device: str) -> None:
    gradient, accepted = torch.ones(8), list[bool]()

    def program() -> None:
        torch.set_default_device(device)  # of this thread
        worker = run.worker()
        accepted.extend(worker.push(gradient, worker.pull().step, 1).accepted for _ in range(3))
        worker.close()

    torch.set_default_dtype(dtype)
    try:
        with Serving() as run:
            thread = threading.Thread(target=program, daemon=True)
            thread.start()
            thread.join(20)
    finally:
        torch.set_default_dtype(torch.float32)
    assert accepted == [True] * 3


def test_a_gradient_on_another_device_is_refused_and_leaves_the_exchange_as_it_was() -> None:
    with Serving() as run:
        worker = run.worker()
        with pytest.raises(ConfigError, match=r"contiguous float32 on the CPU, got torch.float32 on meta"):
            worker.push(torch.ones(8, device="meta"), worker.pull().step, 1)
        assert run.trains(worker)
        worker.close()


def test_an_exchange_that_was_closed_says_so_instead_of_joining_again() -> None:
    with Serving() as run:
        worker = run.worker()
        step = worker.pull().step
        worker.close()
        for call in (worker.pull, lambda: worker.push(torch.ones(8), step, 1)):
            with pytest.raises(ParamServersError, match="this exchange was closed"):
                call()
        worker.close()


def test_another_process_under_the_same_name_is_told_so_at_once() -> None:
    with Serving() as run:
        first = run.worker(incarnation=7)
        assert run.trains(first)
        for closed in (False, True):
            twin = run.worker(incarnation=7)
            with pytest.raises(Refused, match="another process is or was worker 0, incarnation 7"):
                twin.pull()
            twin.close()
            if not closed:
                assert run.trains(first)
                first.close()
        last = run.worker(incarnation=8)
        assert run.trains(last)
        last.close()


def test_an_earlier_life_of_a_server_does_not_take_the_place_of_its_successor() -> None:
    """Its node was given up, and it was started again on another one; then the node was there again."""
    plan = plan_shards(FlatLayout.of({"w": (8,)}), 2)
    server = ParameterServer(
        shard=0,
        plan=plan,
        initial_parameters=torch.zeros(8),
        optimizer_config=OptimizerConfig(),
        exchange_config=ExchangeConfig(exchange="servers", num_servers=2),
        resolve=lambda shard: None,
        secret=SECRET,
    )
    hello = Hello(Role.SERVER, 1, 0, 0, plan.fingerprint)
    successor = hello._replace(incarnation=1)
    assert [server.admits(each) for each in (hello, hello, successor, successor)] == [""] * 4
    assert server.admits(hello) == "a newer incarnation of server 1 is here: 1; this is 0"
    server.close()


def test_of_two_processes_that_are_the_same_server_the_first_ends_and_says_why() -> None:
    """They had taken each other's place for ever."""
    with Serving(plan=PLAN_OF_TWO) as run:
        worker = run.worker()
        assert run.trains(worker)
        first, run.threads[1] = (
            run.threads[1],
            threading.Thread(target=serve(run.config, run.addresses, run.end, PLAN_OF_TWO, 1).run),
        )
        said: list[str] = []
        hook, threading.excepthook = threading.excepthook, lambda given: said.append(str(given.exc_value))
        try:
            run.threads[1].start()
            first.join(30)
        finally:
            threading.excepthook = hook
        assert said == ["server 1 was turned away by server 0: another process connected as server 1, incarnation 0"]
        wait_until(lambda: run.trains(worker), "training")  # what was on its way while they changed places is void
        worker.close()


def test_a_worker_leaves_a_server_that_hangs_for_the_one_that_has_its_place() -> None:
    """The host of the first is alive: its kernel acknowledges whatever comes, and its links hold."""
    wakes, said = threading.Event(), list[str]()
    with Serving(plan=PLAN_OF_TWO, step_timeout_s=5) as run:
        worker = run.worker()
        assert run.trains(worker)
        run.servers[1].look_at_the_clock = wakes.wait  # type: ignore[method-assign, assignment]
        first, run.threads[1] = (
            run.threads[1],
            threading.Thread(target=serve(run.config, run.addresses, run.end, PLAN_OF_TWO, 1, incarnation=1).run),
        )
        run.threads[1].start()
        wait_until(lambda: run.trains(worker), "training")
        hook, threading.excepthook = threading.excepthook, lambda given: said.append(str(given.exc_value))
        try:
            wakes.set()
            first.join(30)
        finally:
            threading.excepthook = hook
        assert said and "server 1 was turned away by server 0" in said[0]
        assert run.trains(worker)
        worker.close()


def test_who_computed_for_long_while_all_went_back_leaves_no_server_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving(plan=PLAN_OF_TWO) as run:
        worker, slept_s, closed = run.worker(), [0.0], list[str]()
        began_s, close = time.monotonic(), worker._hub.close
        worker._now_s = lambda: time.monotonic() - began_s + slept_s[0]
        monkeypatch.setattr(worker._hub, "close", lambda peer: (closed.append(str(peer)), close(peer)))
        assert run.trains(worker)
        for shard in (0, 1):
            worker._heard[shard] = (0, 0.0)  # of the term before, and long ago
        slept_s[0] = 1000.0
        assert run.trains(worker) and not closed
        worker.close()
