"""Passing an update on while it arrives: what was passed on is what is committed."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.layout import FlatLayout, as_bytes, plan_shards
from param_servers.servers import cut_through
from param_servers.servers.cut_through import is_worthwhile, lead_bytes, window_bytes
from param_servers.servers.server import ParameterServer
from param_servers.servers.shard import Shard
from param_servers.servers.shard_node import ShardNode
from param_servers.servers.step_commits import Commit, Give, Restore
from param_servers.wire.frames import Frame, Message
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import MEMBER, RECIPIENT, Header, Kind, Row
from tests.param_servers.wire.hub_pair import Pair

SGD = OptimizerConfig(optimizer="sgd", learning_rate="1")
WORKER = Peer(Role.WORKER, 0)
NUMEL = 1 << 10
GRADIENT = Header(Kind.GRADIENT, 0, 0, 1, 0, sequence=1, data_points=5, length=8)


class OneWorker:
    """A hub to which one worker is connected, checkpoints with the initial parameters, and shard 0, to be told."""

    def __init__(self) -> None:
        self.arriving: tuple[Header, int] | None = None
        self.sent: list[Kind] = []
        self.held: list[Peer] = []

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        return self.arriving

    def hold(self, peers: list[Peer]) -> None:
        self.held = peers

    def send(self, peer: Peer, header: Header, payload: Any = None) -> None:
        self.sent.append(header.kind)

    def stream(self, peer: Peer, frame: Frame) -> bool:
        self.sent.append(frame.kind)
        return True

    def allow(self, peer: Peer, frame: Frame, size: int) -> None:
        pass

    def cancel(self, peer: Peer, kind: Kind) -> None:
        pass

    def tell(self, *what: Any) -> None:
        pass

    def load(self, step: int, done: Callable[[torch.Tensor, None], None]) -> None:
        done(torch.zeros(2), None)


def running(hub: Any) -> ShardNode:
    node = ShardNode(0, Shard(torch.zeros(2), SGD), hub, False, hub, hub.tell, all_needed=1)
    node.joined(Hello(Role.WORKER, 0, 0, 0, ""))
    node.obey(Restore(1, 0, 0))
    return node


def commit(node: ShardNode) -> None:
    node.obey(Commit(1, 0, 0, 5, (Row(0, 0, 1, MEMBER | RECIPIENT),), (0,)))


def test_an_update_is_streamed_while_it_arrives_and_sealed_by_the_commit() -> None:
    hub = OneWorker()
    node = running(hub)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([1.0, 2.0]))
    hub.arriving = (GRADIENT, 4)
    node.advance(0.0)
    hub.arriving = None
    node.gradient(WORKER, GRADIENT)
    commit(node)
    assert hub.sent == [Kind.PARAMETERS, Kind.SEALED]
    assert node.shard.parameters.tolist() == [-1.0, -2.0]


def test_versions_do_not_pile_up_for_a_worker_whose_way_to_this_shard_is_slow(pair: Pair) -> None:
    """It hears of each from the others, and asks; of those that have not begun only the newest is worth its way."""
    numel = 1 << 20
    pair.connect()
    node: Any = ShardNode(0, Shard(torch.zeros(numel), SGD), pair.server, False, OneWorker(), OneWorker().tell)
    node.joined(Hello(Role.WORKER, 3, 0, 0, ""))
    for step in range(40):
        node.term, node.step = 1, step
        node.obey(Give(1, step, (Row(3, 0, 0),)))
        pair.server.poll(0.0)  # of 4 MiB each; the worker reads nothing yet
    pair.until(lambda: any(event.header.step == 39 for event in pair.heard[pair.worker] if isinstance(event, Message)))
    steps = [event.header.step for event in pair.heard[pair.worker] if isinstance(event, Message)]
    assert steps == sorted(set(steps)) and len(steps) <= 10  # what the kernel's buffers took, and the newest


def test_nothing_is_streamed_when_all_gradients_are_here_already() -> None:
    hub = OneWorker()
    node = running(hub)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([1.0, 2.0]))
    node.gradient(WORKER, GRADIENT)
    node.advance(0.0)
    commit(node)
    assert hub.sent == [Kind.PARAMETERS]
    assert node.shard.parameters.tolist() == [-1.0, -2.0]


def test_a_repetition_that_is_arriving_is_not_taken_for_the_slice_that_is_complete() -> None:
    """Its first frame is complete but not looked at yet, a second one has begun: the second is passed on."""
    hub = OneWorker()
    node = running(hub)
    first = node.receive_into(WORKER, GRADIENT)
    first[:] = as_bytes(torch.tensor([1.0, 2.0]))
    second = node.receive_into(WORKER, GRADIENT)
    second[:] = as_bytes(torch.tensor([1.0, 99.0]))  # its second half is not here yet
    hub.arriving = (GRADIENT, 4)
    node.advance(0.0)
    node.gradient(WORKER, GRADIENT)
    commit(node)
    assert hub.sent == [Kind.PARAMETERS, Kind.ABORTED, Kind.PARAMETERS]
    assert node.shard.parameters.tolist() == [-1.0, -2.0]


def test_a_gradient_that_is_not_finite_is_found_once_it_is_whole_and_what_was_passed_on_is_void() -> None:
    hub = OneWorker()
    node = running(hub)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([float("nan"), 2.0]))
    hub.arriving = (GRADIENT, 8)
    node.advance(0.0)
    hub.arriving = None
    node.gradient(WORKER, GRADIENT)
    assert hub.sent == [Kind.PARAMETERS, Kind.ABORTED, Kind.RECEIPT]
    assert node.shard.parameters.tolist() == [0.0, 0.0]


class Recorded(OneWorker):
    """What a shard beside shard 0 does, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.bytes_moved = (0, 0)

    def connected(self, peer: Peer) -> bool:
        return True

    def send(self, peer: Peer, header: Header, payload: Any = None) -> None:
        self.log.append(f"{header.kind.name} to {peer}")

    def allow(self, peer: Peer, frame: Frame, size: int) -> None:
        if size > frame.available:
            frame.available = size
            self.log.append(f"more to {peer}")

    def flush(self) -> None:
        self.log.append("flush")

    def shut(self) -> None:
        pass


def test_shard_0_hears_of_the_last_gradient_before_the_wire_is_filled_with_the_last_part() -> None:
    numel, hub = 1 << 16, Recorded()
    plan, initial = plan_shards(FlatLayout.of({"w": (2 * numel,)}), 2), torch.zeros(2 * numel)
    core = ParameterServer(
        shard=1,
        plan=plan,
        initial_parameters=initial,
        optimizer_config=OptimizerConfig(optimizer="sgd", learning_rate="1"),
        exchange_config=ExchangeConfig(num_workers=1, num_backup_workers=0, num_servers=2),
        resolve=lambda shard: None,
        secret=b"s" * 16,
        clock=lambda: 0.0,
        hub=hub,  # type: ignore[arg-type]
    )
    core.node.joined(Hello(Role.WORKER, 0, 0, 0, ""))
    core.node.obey(Restore(1, 0, 0))
    gradient = GRADIENT._replace(length=4 * numel)
    place = core.node.receive_into(WORKER, gradient)
    place[:] = as_bytes(torch.ones(numel))
    hub.arriving = (gradient, 2 * numel)
    core.look_at_the_clock()
    assert f"more to {WORKER}" in hub.log  # half of the update
    hub.log.clear()
    hub.arriving = None
    core.handle(Message(WORKER, gradient, place))
    core.look_at_the_clock()
    core.close()
    assert hub.log == ["ARRIVED to server 0", "flush", f"more to {WORKER}"]


class TwoWorkers(OneWorker):
    """As many bytes of each worker's slice have arrived as `arrived` says."""

    def __init__(self, arrived: dict[int, int]) -> None:
        super().__init__()
        self.arrived = arrived

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        return (_from(peer.rank), self.arrived[peer.rank]) if peer.rank in self.arrived else None

    def load(self, step: int, done: Callable[[torch.Tensor, None], None]) -> None:
        done(torch.zeros(NUMEL), None)


def _from(worker: int) -> Header:
    return GRADIENT._replace(sender=worker, length=4 * NUMEL)


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> tuple[TwoWorkers, ShardNode]:
    """Of whom the first is far ahead of the second, where 512 bytes are allowed."""
    monkeypatch.setattr(cut_through, "lead_bytes", lambda slice_bytes, workers: 512)
    hub: Any = TwoWorkers({0: 1024, 1: 256})
    node = ShardNode(0, Shard(torch.zeros(NUMEL), SGD), hub, False, hub, hub.tell, all_needed=2, hold_s=15.0)
    for worker in (0, 1):
        node.joined(Hello(Role.WORKER, worker, 0, 0, ""))
    node.obey(Restore(1, 0, 0))
    for worker in (0, 1):
        node.receive_into(Peer(Role.WORKER, worker), _from(worker))
    node.advance(0.0)
    return hub, node


def test_a_worker_far_ahead_of_the_slowest_is_not_read_until_that_one_has_caught_up(
    two_workers: tuple[TwoWorkers, ShardNode],
) -> None:
    hub, node = two_workers
    assert hub.held == [WORKER]
    hub.arrived[1] = 512
    node.advance(0.0)
    assert hub.held == []


def test_a_slowest_that_stands_still_holds_nobody_for_long(two_workers: tuple[TwoWorkers, ShardNode]) -> None:
    """Or the others would be late with it when the step times out."""
    hub, node = two_workers
    node.advance(14.0)
    assert hub.held == [WORKER]
    node.advance(15.0)
    assert hub.held == []


def test_a_worker_that_stands_still_in_the_middle_of_its_push_is_expelled_and_the_one_that_waited_for_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real links: one sends a quarter of its slice and no more, the other is held at three quarters."""
    monkeypatch.setattr(cut_through, "lead_bytes", lambda slice_bytes, workers: 4096)
    numel, now_s, secret = 1 << 18, [100.0], b"s" * 32
    plan = plan_shards(FlatLayout.of({"w": (numel,)}), 1)
    core = ParameterServer(
        shard=0,
        plan=plan,
        initial_parameters=torch.zeros(numel),
        optimizer_config=OptimizerConfig(optimizer="sgd", learning_rate="1"),
        exchange_config=ExchangeConfig(
            exchange="servers", num_workers=2, num_backup_workers=0, step_timeout_s=60.0, join_timeout_s=60.0
        ),
        resolve=lambda shard: None,
        secret=secret,
        clock=lambda: now_s[0],
    )
    hubs = [Hub(secret, lambda peer, header: memoryview(bytearray(header.length))) for _ in range(2)]

    def until(done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline_s, core.node.ended
            for hub in hubs:
                hub.poll(0.0)
            for event in core._hub.poll(0.01):
                core.handle(event)
            core.look_at_the_clock()

    address = core._hub.listen("127.0.0.1", 0, core._window_bytes)
    core.begin()
    for worker, hub in enumerate(hubs):
        hub.dial(address, Hello(Role.WORKER, worker, 0, 0, plan.fingerprint))
    server = Peer(Role.SERVER, 0)
    until(lambda: core.node.term > 0 and len(core.node.workers) == 2 and all(hub.connected(server) for hub in hubs))
    frames = []
    for worker, (hub, quarters) in enumerate(zip(hubs, (1, 3), strict=True)):
        header = Header(Kind.GRADIENT, worker, 0, core.node.term, 0, sequence=1, data_points=5)
        frames.append(Frame(header, as_bytes(torch.ones(numel)), available=quarters * numel))
        hub.stream(server, frames[-1])
    until(lambda: bool(core._hub._held))
    hubs[1].allow(server, frames[1], 4 * numel)
    now_s[0] += core._timeouts.hold_s
    until(lambda: core._hub.receiving(Peer(Role.WORKER, 1)) is None)
    now_s[0] += core._timeouts.first_step_s
    until(lambda: core.node.step == 1 or core.node.ended is not None)
    assert core.node.ended is None and core.node.shard.parameters[0] == -1.0
    for hub in (core._hub, *hubs):
        hub.shut()
    core.close()


def test_nobody_is_held_once_an_update_is_taken_back(two_workers: tuple[TwoWorkers, ShardNode]) -> None:
    hub, node = two_workers
    node.left(1)
    assert hub.held == [] and Kind.ABORTED in hub.sent


def test_only_many_links_with_long_slices_wait_for_the_slowest() -> None:
    assert lead_bytes(677_000, 64) == 677_000 // 32
    assert lead_bytes(200_000, 64) == 16 << 10
    assert lead_bytes(42_000, 64) == 42_000  # all of it: nobody waits
    assert lead_bytes(6_700_000, 8) == 6_700_000


def test_all_receive_windows_together_are_bounded_but_none_is_too_small_to_move_bytes() -> None:
    assert window_bytes(6_700_000, 8) == (384 << 10) // 8
    assert window_bytes(960_000, 8) == 960_000 // 32
    assert window_bytes(1000, 8) == 16 << 10
    assert window_bytes(1000, 64) == 11 << 10


def test_small_slices_are_not_passed_on_while_they_arrive() -> None:
    assert not is_worthwhile(1000, 64)
    assert is_worthwhile(1_330_000 // 8, 8)
