"""What a listening or dialling hub does with strangers, and with frames that are none; real sockets on loopback."""

import os
import resource
import socket

import pytest

from param_servers.events import Left, Message, Rejected
from param_servers.handshake import Hello, Role, pack_hello
from param_servers.messages import HEADER_BYTES, Header, Kind, pack_header
from tests.param_servers.hub_pair import MOST, SERVER, WORKER, Pair


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(60), "stranger"),
        (b"\0" * 100, "stranger"),
        (pack_hello(Hello(Role.WORKER, 3, 0, 0, "f" * 16), bytes(32)) + bytes(32), "does not know this run's secret"),
    ],
)
def test_a_stranger_is_turned_away_in_one_line(pair: Pair, data: bytes, why: str) -> None:
    with pair.raw() as stranger:
        stranger.sendall(data)
        event = pair.wait_for(pair.server, Rejected)
    assert isinstance(event, Rejected) and why in event.reason


def test_a_connection_beyond_the_last_open_file_is_closed_and_the_links_go_on(pair: Pair) -> None:
    pair.connect()
    strangers = [pair.raw() for _ in range(3)]  # before files run out: their own ends need descriptors too
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")), limits[1]))
    fillers = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        pair.until(lambda: sum(isinstance(event, Rejected) for event in pair.heard[pair.server]) == 3)
        assert "Too many open files (EMFILE)" in pair.last(pair.server, Rejected).reason
        assert [stranger.recv(1) for stranger in strangers] == [b""] * 3  # closed, not left waiting
        pair.worker.send(SERVER, Header(Kind.PULL, 3))
        assert isinstance(pair.wait_for(pair.server, Message), Message)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in fillers:
            os.close(descriptor)
        for stranger in strangers:
            stranger.close()


def test_a_stranger_that_says_nothing_is_cut_off(pair: Pair) -> None:
    with pair.raw() as stranger:
        event = pair.wait_for(pair.server, Rejected)
        assert isinstance(event, Rejected) and "more than 0.3 s" in event.reason
        assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"garbage" * 20, "not a param_servers frame"),
        (pack_header(Header(Kind.GRADIENT, sender=3, length=MOST + 1)), "too many"),
        (pack_header(Header(Kind.GRADIENT, sender=3, length=2**63)), "too many"),
        (pack_header(Header(Kind.PULL, sender=4)), "signs as rank 4"),
        (b"D3PS\x07\x00" + bytes(HEADER_BYTES - 6), "version 7"),
    ],
)
def test_a_bad_frame_closes_its_link_only_and_says_why(pair: Pair, frame: bytes, why: str) -> None:
    pair.connect()
    (link,) = pair.worker._links.values()
    link.sock.setblocking(True)
    link.sock.sendall(frame)
    left = pair.wait_for(pair.server, Left)
    assert isinstance(left, Left) and left.peer == WORKER and why in left.reason


def test_a_stranger_in_a_servers_place_is_noticed(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        pair.worker.dial(impostor.getsockname(), Hello(Role.WORKER, 3, 0, 0, "f" * 16))
        pair.worker.poll(0.1)
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(bytes(200))
            left = pair.wait_for(pair.worker, Left)
    assert isinstance(left, Left) and "not a parameter server" in left.reason
