"""Passing an update on while it arrives: what was bet on is what is committed."""

from typing import Any

import torch

from param_servers.config import OptimizerConfig
from param_servers.cut_through import is_worthwhile, window_bytes
from param_servers.frames import Frame
from param_servers.handshake import Hello, Peer, Role
from param_servers.messages import MEMBER, RECIPIENT, Dtype, Header, Kind, Row, pack_rows
from param_servers.shard import Shard, as_bytes
from param_servers.shard_node import ShardNode

WORKER = Peer(Role.WORKER, 0)
GRADIENT = Header(Kind.GRADIENT, 0, 0, 1, 0, sequence=1, data_points=5, dtype=Dtype.FLOAT32, length=8)


class OneWorker:
    """A hub to which one worker is connected, and a storage with the initial parameters."""

    def __init__(self) -> None:
        self.arriving: tuple[Header, int] | None = None
        self.sent: list[Kind] = []

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        return self.arriving

    def send(self, peer: Peer, header: Header, payload: Any = None) -> None:
        self.sent.append(header.kind)

    def stream(self, peer: Peer, frame: Frame) -> bool:
        self.sent.append(frame.kind)
        return True

    def grown(self, peer: Peer) -> None:
        pass

    def load(self, step: int) -> tuple[torch.Tensor, None]:
        return torch.zeros(2), None


def running(hub: Any) -> ShardNode:
    shard = Shard(torch.zeros(2), OptimizerConfig(optimizer="sgd", learning_rate="1"))
    node = ShardNode(0, shard, False, hub, lambda header, payload: None, all_needed=1)
    node.hub = hub
    node.joined(Hello(Role.WORKER, 0, 0, 0, ""))
    node.obey(Header(Kind.RESTORE, 0, 0, 1, 0), b"")
    return node


def commit(node: ShardNode) -> None:
    node.obey(Header(Kind.COMMIT, 0, 0, 1, 0, data_points=5), pack_rows([Row(0, 0, 1, MEMBER | RECIPIENT)]))


def test_an_update_is_streamed_while_it_arrives_and_sealed_by_the_commit() -> None:
    hub = OneWorker()
    node = running(hub)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([1.0, 2.0]))
    hub.arriving = (GRADIENT, 4)
    node.advance()
    hub.arriving = None
    node.gradient(WORKER, GRADIENT, place)
    commit(node)
    assert hub.sent == [Kind.PARAMETERS, Kind.SEALED]
    assert node.shard.parameters.tolist() == [-1.0, -2.0]


def test_nothing_is_streamed_when_all_gradients_are_here_already() -> None:
    hub = OneWorker()
    node = running(hub)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([1.0, 2.0]))
    node.gradient(WORKER, GRADIENT, place)
    node.advance()
    commit(node)
    assert hub.sent == [Kind.PARAMETERS]
    assert node.shard.parameters.tolist() == [-1.0, -2.0]


def test_a_repetition_that_is_arriving_is_not_taken_for_the_slice_that_is_complete() -> None:
    """Its first frame is complete but not looked at yet, a second one has begun: the bet is on the second."""
    hub = OneWorker()
    node = running(hub)
    first = node.receive_into(WORKER, GRADIENT)
    first[:] = as_bytes(torch.tensor([1.0, 2.0]))
    second = node.receive_into(WORKER, GRADIENT)
    second[:] = as_bytes(torch.tensor([1.0, 99.0]))  # its second half is not here yet
    hub.arriving = (GRADIENT, 4)
    node.advance()
    node.gradient(WORKER, GRADIENT, first)
    commit(node)
    assert hub.sent == [Kind.PARAMETERS, Kind.ABORTED, Kind.PARAMETERS]
    assert node.shard.parameters.tolist() == [-1.0, -2.0]


def test_all_receive_windows_together_are_bounded_but_none_is_too_small_to_move_bytes() -> None:
    assert window_bytes(6_700_000, 8) == (384 << 10) // 8
    assert window_bytes(480_000, 8) == 480_000 // 32
    assert window_bytes(1000, 64) == 11 << 10


def test_small_slices_are_not_passed_on_while_they_arrive() -> None:
    assert not is_worthwhile(1000, 64)
    assert is_worthwhile(1_330_000 // 8, 8)
