"""What a hub over MPI makes of messages and deaths in orders that a real mpirun seldom shows."""

from collections.abc import Iterator
from typing import Any

import pytest

from param_servers.wire.events import Event, Joined, Left, Message
from param_servers.wire.handshake import Hello, Peer, Role, check_verdict, pack_hello, pack_verdict
from param_servers.wire.messages import Header, Kind, pack_header
from tests.param_servers.wire.fake_mpi import FakeWorld, mpi_of

PAYLOAD = bytes(range(100))


def hello(rank: int) -> bytes:
    return pack_hello(Hello(Role.WORKER, rank, 0, 0, "f" * 16), bytes(32))


def gradient(rank: int, step: int = 0, length: int = len(PAYLOAD)) -> bytes:
    return pack_header(Header(Kind.GRADIENT, rank, step=step, length=length))


class Server:
    """A hub on rank 0 that ranks 1, 2 and 3 can join as workers 1, 2 and 3."""

    def __init__(self, world: FakeWorld, hub_class: Any) -> None:
        self.world = world
        self.hub = hub_class(b"", lambda peer, header: memoryview(bytearray(len(PAYLOAD))))

    def hears(self, *messages: tuple[int, bytes]) -> list[Event]:
        """What one poll makes of these messages, each with the rank that sent it."""
        self.world.arriving.extend(messages)
        return self.hub.poll(0.0)


@pytest.fixture
def server() -> Iterator[Server]:
    world = FakeWorld()
    with mpi_of(world) as hub_class:
        yield Server(world, hub_class)


def test_frames_of_one_rank_stay_in_order_while_a_payload_is_not_complete(server: Server) -> None:
    (joined,) = server.hears((1, hello(1)))
    assert isinstance(joined, Joined) and check_verdict(server.world.sent[0][1]) is None
    server.world.slow = True
    pull = pack_header(Header(Kind.PULL, 1))
    assert server.hears((1, gradient(1, step=5)), (1, PAYLOAD), (1, pull), (1, gradient(1, step=6)), (1, PAYLOAD)) == []
    server.world.slow = False
    events = [event for _ in range(2) for event in server.hub.poll(0.0)]
    assert [event.header.kind for event in events] == [Kind.GRADIENT, Kind.PULL, Kind.GRADIENT]
    assert [event.header.step for event in events] == [5, 0, 6] and bytes(events[2].payload) == PAYLOAD
    assert server.hub.bytes_moved[1] == len(hello(1)) + 3 * len(pull) + 2 * len(PAYLOAD)


def test_ranks_that_die_together_in_their_payloads_are_each_left_once(server: Server) -> None:
    assert len(server.hears(*((rank, hello(rank)) for rank in (1, 2, 3)))) == 3
    server.world.slow = True
    assert server.hears(*((rank, data) for rank in (1, 2, 3) for data in (gradient(rank), PAYLOAD))) == []
    server.world.dead, server.world.slow = {1, 2}, False
    events = [event for _ in range(3) for event in server.hub.poll(0.0)]
    assert {event for event in events if isinstance(event, Left)} == {
        Left(Peer(Role.WORKER, rank), "its process died") for rank in (1, 2)
    }
    assert [event.peer.rank for event in events if isinstance(event, Message)] == [3] and len(events) == 3


def test_a_rank_that_died_after_its_hello_does_not_join(server: Server) -> None:
    server.world.dead = {1}
    assert server.hears((1, hello(1))) == [] and not server.hub.connected(Peer(Role.WORKER, 1))


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([gradient(1), PAYLOAD[1:]], "a payload of 99 bytes instead of 100"),
        ([gradient(1, length=99)], "a GRADIENT of 99 bytes instead of 100"),
        ([gradient(2)], "it signs as rank 2"),
        ([bytes(1000)], "an unexpected message of 1000 bytes"),
    ],
)
def test_a_rank_that_must_not_be_believed_is_left_and_the_reason_said(
    server: Server, messages: list[bytes], why: str
) -> None:
    server.hears((1, hello(1)))
    (left,) = server.hears(*((1, message) for message in messages))
    assert isinstance(left, Left) and left.reason == why
    assert server.world.sent[1:] == [(1, b"D3BY")]  # told, or it would wait for an answer until its timeout
    (joined,) = server.hears((1, hello(1)))
    assert isinstance(joined, Joined) and check_verdict(server.world.sent[2][1]) is None


def test_a_rank_that_leaves_is_left_without_an_answer(server: Server) -> None:
    server.hears((1, hello(1)))
    (left,) = server.hears((1, b"D3BY"))
    assert isinstance(left, Left) and left.reason == "it left" and len(server.world.sent) == 1


def test_a_server_that_drops_this_rank_is_left_and_can_be_called_again(server: Server) -> None:
    server.hub.dial(("mpi", 2), Hello(Role.WORKER, 0, 0, 1, "f" * 16))
    (joined,) = server.hears((2, pack_verdict("")))
    assert isinstance(joined, Joined) and joined.peer == Peer(Role.SERVER, 1)
    assert server.hears((2, b"D3BY")) == [Left(Peer(Role.SERVER, 1), "it left")]
    server.hub.dial(("mpi", 2), Hello(Role.WORKER, 0, 0, 1, "f" * 16))
    (joined,) = server.hears((2, pack_verdict("")))
    assert isinstance(joined, Joined)
