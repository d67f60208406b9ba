"""Real sockets on loopback, both ends in one thread: frames, links that take others' places, last words."""

import socket
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from param_servers.timeouts import LINGER_S
from param_servers.wire import hub
from param_servers.wire.frames import Event, Frame, Joined, Left, Link, Message
from param_servers.wire.handshake import Hello, Role
from param_servers.wire.hub import READ, Hub
from param_servers.wire.messages import HEADER_BYTES, Code, Header, Kind, pack_header
from tests.param_servers.wire.hub_pair import MOST, SECRET, SERVER, WORKER, Pair, receive_into


def test_a_large_frame_arrives_whole(pair: Pair) -> None:
    pair.connect()
    payload = bytes(range(256)) * (MOST // 256)
    pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3, step=5), memoryview(payload))
    message = pair.wait_for(pair.server, Message)
    assert isinstance(message, Message)
    assert (message.peer, message.header.step, bytes(message.payload)) == (WORKER, 5, payload)


def test_frames_cross_in_both_directions_without_waiting_for_each_other(pair: Pair) -> None:
    pair.connect()
    payload = memoryview(bytes(MOST))
    for _ in range(4):
        pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3), payload)
        pair.server.send(WORKER, Header(Kind.PARAMETERS), payload)
    count = lambda hub: sum(isinstance(event, Message) for event in pair.heard[hub])  # noqa: E731
    pair.until(lambda: count(pair.server) == 4 and count(pair.worker) == 4)


def test_a_message_that_is_expected_whole_wakes_nobody_before_its_end(pair: Pair) -> None:
    pair.connect()
    pair.server.expect(WORKER, HEADER_BYTES + 1000)
    frame = Frame(Header(Kind.GRADIENT, 3), memoryview(bytes(1000)), available=500)
    pair.worker.stream(SERVER, frame)
    pair.until(lambda: frame.sent == HEADER_BYTES + 500)
    assert pair.server.poll(0.05) == [] and pair.server.receiving(WORKER) is None
    pair.worker.allow(SERVER, frame, 1000)
    assert isinstance(pair.wait_for(pair.server, Message), Message)
    pair.worker.close(SERVER)
    pair.wait_for(pair.server, Left)  # an end is noticed all the same


def test_a_streamed_payload_wakes_its_reader_once_with_the_word_that_follows(pair: Pair) -> None:
    pair.connect()
    frame = Frame(Header(Kind.PARAMETERS, code=Code.STREAMED), memoryview(bytes(50_000)), available=10_000)
    pair.server.stream(WORKER, frame)
    pair.until(lambda: pair.worker.receiving(SERVER) is not None)
    pair.server.allow(WORKER, frame, 50_000)
    pair.server.poll(0)
    assert frame.sent == HEADER_BYTES + 50_000
    assert pair.worker.poll(0.05) == []
    pair.server.send(WORKER, Header(Kind.SEALED))
    pair.server.poll(0)
    heard = [event.header.kind for event in pair.worker.poll(10) if isinstance(event, Message)]
    assert heard == [Kind.PARAMETERS, Kind.SEALED]


def test_the_header_of_a_growing_frame_waits_for_its_first_bytes(pair: Pair) -> None:
    pair.connect()
    frame = Frame(Header(Kind.PARAMETERS), memoryview(bytes(1000)), available=0)
    pair.server.stream(WORKER, frame)
    pair.server.poll(0)
    assert frame.sent == 0
    pair.server.allow(WORKER, frame, 1)
    pair.server.poll(0)
    assert frame.sent == HEADER_BYTES + 1


def test_a_link_of_which_the_kernel_takes_no_more_is_not_tried_again_before_it_does(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.connect()
    pair.worker._links[SERVER].sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3), memoryview(bytes(MOST)))
    pair.worker.flush()
    tries = 0
    flush = Link.flush

    def counted(link: Link) -> None:
        nonlocal tries
        tries += 1
        flush(link)

    monkeypatch.setattr(Link, "flush", counted)
    pair.worker.send(SERVER, Header(Kind.PULL, sender=3))
    pair.worker.flush()
    assert tries == 0
    pair.until(lambda: [event.header.kind for event in pair.heard[pair.server] if isinstance(event, Message)][1:] != [])
    assert tries > 0


def test_a_growing_frame_is_sent_as_it_grows(pair: Pair) -> None:
    pair.connect()
    frame = Frame(Header(Kind.PARAMETERS), memoryview(bytes(1000)), available=0)
    pair.server.stream(WORKER, frame)
    for available in (300, 700, 1000):
        pair.server.allow(WORKER, frame, available)
        pair.until(lambda available=available: frame.sent == HEADER_BYTES + available)
    assert isinstance(pair.wait_for(pair.worker, Message), Message)


def test_a_frame_longer_than_the_shortest_is_read_to_its_end_however_it_comes_in_pieces(pair: Pair) -> None:
    pair.connect()
    pair.server.expect(WORKER, HEADER_BYTES + 100)
    frame = Frame(Header(Kind.GRADIENT, sender=3), memoryview(bytes(150)), available=0)
    pair.worker.stream(SERVER, frame)
    for available in (130, 150):  # the rest is less than what the server waits for
        pair.worker.allow(SERVER, frame, available)
        pair.until(lambda: frame.sent == HEADER_BYTES + frame.available)
        pair.heard[pair.server] += pair.server.poll(0.05)
    assert isinstance(pair.wait_for(pair.server, Message), Message)


def test_frames_that_have_not_begun_can_be_taken_back(pair: Pair) -> None:
    pair.connect()
    pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3), memoryview(bytes(10)))
    pair.worker.cancel(SERVER, Kind.GRADIENT)
    pair.worker.send(SERVER, Header(Kind.PULL, sender=3))
    message = pair.wait_for(pair.server, Message)
    assert isinstance(message, Message) and message.header.kind == Kind.PULL


def test_a_closed_link_is_left_with_its_last_words_read(pair: Pair) -> None:
    pair.connect()
    pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3), memoryview(bytes(MOST)))  # unread when the end comes
    pair.server.send(WORKER, Header(Kind.EXPELLED), memoryview(b"too slow"))
    pair.server._linger_s = 60.0
    pair.server.close(WORKER)
    pair.wait_for(pair.worker, Left)
    message = pair.last(pair.worker, Message)
    assert isinstance(message, Message) and bytes(message.payload) == b"too slow"
    assert pair.last(pair.server, Left) is None


def test_last_words_reach_a_peer_behind_a_slow_link_however_much_is_queued_before_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.connect()
    (link,) = pair.server._links.values()
    link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    for _ in range(16):
        pair.server.send(WORKER, Header(Kind.PARAMETERS), memoryview(bytes(MOST)))
    pair.server.send(WORKER, Header(Kind.STOP))
    now_s = began_s = time.monotonic()
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: now_s))
    pair.server.close(WORKER)
    sent = link.bytes_sent

    def stopped_on_a_link_that_takes_half_of_the_patience_for_whatever_moves() -> bool:
        nonlocal now_s, sent
        now_s += LINGER_S / 2 if link.bytes_sent > sent else 0.0
        sent = link.bytes_sent
        last = pair.last(pair.worker, Message)
        return isinstance(last, Message) and last.header.kind == Kind.STOP

    pair.until(stopped_on_a_link_that_takes_half_of_the_patience_for_whatever_moves)
    assert now_s - began_s > 4 * LINGER_S


def test_a_closed_link_whose_peer_reads_nothing_is_cut_off(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.connect()
    for _ in range(16):
        pair.server.send(WORKER, Header(Kind.PARAMETERS), memoryview(bytes(MOST)))
    now_s = time.monotonic()
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: now_s))
    pair.server.close(WORKER)
    (link,) = pair.server._passing
    sent = -1
    while pair.server._passing:
        assert link.bytes_sent > sent  # the kernel has taken more since the last look
        sent = link.bytes_sent
        now_s += LINGER_S
        pair.server.poll(0)
    assert link.sock.fileno() < 0


def test_whoever_ends_has_all_its_time_for_a_peer_that_is_busy_and_reads_its_last_words_late(pair: Pair) -> None:
    pair.connect()
    for _ in range(16):
        pair.server.send(WORKER, Header(Kind.PARAMETERS), memoryview(bytes(MOST)))
    pair.server.send(WORKER, Header(Kind.STOP))
    pair.server._linger_s = 0.05
    ending = threading.Thread(target=pair.server.drain, args=(30.0,))
    ending.start()
    ending.join(0.5)  # ten times as long as a link that is closed alone may stand still
    assert ending.is_alive()
    heard: list[Event] = []
    while not any(isinstance(event, Message) and event.header.kind == Kind.STOP for event in heard):
        heard += pair.worker.poll(1.0)
        assert not any(isinstance(event, Left) for event in heard)
    pair.worker.shut()
    ending.join(30)
    assert not ending.is_alive()


def test_a_second_link_of_the_same_peer_takes_the_place_of_the_first(pair: Pair) -> None:
    pair.connect()
    first = pair.worker
    pair.worker = Hub(SECRET, receive_into)
    pair.heard[pair.worker] = []
    pair.connect(incarnation=1)
    pair.heard[first] += first.poll(1.0)
    words = [event for event in pair.heard[first] if isinstance(event, Message)]
    assert words and words[0].header.code == Code.FAILED and b"another process" in bytes(words[0].payload)
    joined = pair.last(pair.server, Joined)
    assert isinstance(joined, Joined) and joined.hello.incarnation == 1
    first.shut()


def test_a_broken_link_whose_peer_connects_again_at_that_moment_is_left_once(pair: Pair) -> None:
    pair.connect()
    (first,) = pair.worker._links.values()
    second = Hub(SECRET, receive_into)
    second.dial(pair.address, Hello(Role.WORKER, 3, 1, 0, "f" * 16))
    while not second.bytes_moved[1]:  # until it has answered the challenge, which the server does not see yet
        assert pair.server.poll(0.01) == second.poll(0.01) == []
    first.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.sock.close()  # resets the connection: the server reads of both in one poll, of the new one first
    events: list[Any] = []
    while len(events) < 2:
        events += pair.server.poll(1.0)
    assert [type(event) for event in events] == [Left, Joined]
    second.shut()


def test_a_held_link_is_not_read_but_written_until_it_is_let_go(pair: Pair) -> None:
    pair.connect()
    pair.server.hold([WORKER])
    pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3, step=5), memoryview(bytes(1000)))
    pair.server.send(WORKER, Header(Kind.PARAMETERS), memoryview(bytes(MOST)))
    pair.wait_for(pair.worker, Message)
    assert pair.server.poll(0.05) == [] and pair.last(pair.server, Message) is None
    pair.server.hold([])
    message = pair.wait_for(pair.server, Message)
    assert isinstance(message, Message) and message.header.step == 5


def test_the_end_of_a_held_link_is_noticed_when_it_is_let_go(pair: Pair) -> None:
    pair.connect()
    pair.server.hold([WORKER])
    pair.worker.close(SERVER)
    assert pair.server.poll(0.05) == []
    pair.server.hold([])
    pair.wait_for(pair.server, Left)


def test_a_held_link_can_be_closed_and_its_peer_may_come_again(pair: Pair) -> None:
    pair.connect()
    pair.server.hold([WORKER])
    pair.server.close(WORKER)
    assert list(pair.server._watched.values()) == [READ]  # its last words are waited for
    pair.wait_for(pair.worker, Left)
    pair.until(lambda: not pair.server._watched)
    pair.connect(incarnation=1)
    pair.worker.send(SERVER, Header(Kind.GRADIENT, sender=3), memoryview(bytes(1000)))
    pair.wait_for(pair.server, Message)


def test_a_frame_cut_off_by_death_is_no_message(pair: Pair) -> None:
    pair.connect()
    (link,) = pair.worker._links.values()
    link.sock.sendall(pack_header(Header(Kind.GRADIENT, sender=3, length=1000)) + bytes(500))
    link.sock.close()
    pair.wait_for(pair.server, Left)
    assert pair.last(pair.server, Message) is None


def test_nobody_listening_is_told_as_left(pair: Pair) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        pair.worker.dial(silent.getsockname(), Hello(Role.WORKER, 3, 0, 0, "f" * 16))
        left = pair.wait_for(pair.worker, Left)
    assert isinstance(left, Left) and left.peer == SERVER and "refused" in left.reason


def test_a_host_that_does_not_exist_is_told_as_left(pair: Pair) -> None:
    pair.worker.dial(("no such host", 1), Hello(Role.WORKER, 3, 0, 0, "f" * 16))
    left = pair.wait_for(pair.worker, Left)
    assert isinstance(left, Left) and "no such host:1: " in left.reason and "Unknown error" not in left.reason
