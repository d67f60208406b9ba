"""What a listening or dialling hub does with strangers, and with frames that are none; real sockets on loopback."""

import os
import resource
import socket
import time

import pytest

from param_servers.wire import hub
from param_servers.wire.frames import Left, Message, Rejected
from param_servers.wire.handshake import Hello, Role, pack_hello
from param_servers.wire.messages import HEADER_BYTES, Header, Kind, pack_header
from tests.param_servers.wire.hub_pair import MOST, SERVER, WORKER, Pair


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


def test_a_connection_beyond_the_last_open_file_waits_without_a_busy_loop_and_the_links_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PAUSE_S", 1e9)
    pair.connect()
    strangers = [pair.raw() for _ in range(3)]  # before files run out: their own ends need descriptors too
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")), limits[1]))
    fillers = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        told = pair.wait_for(pair.server, Rejected)
        assert isinstance(told, Rejected) and "Too many open files (EMFILE)" in told.reason
        start_s = time.monotonic()
        assert pair.server.poll(0.3) == [] and time.monotonic() - start_s > 0.25  # the three do not wake it up
        pair.worker.send(SERVER, Header(Kind.PULL, 3))
        assert isinstance(pair.wait_for(pair.server, Message), Message)
        while fillers:
            os.close(fillers.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        pair.server._deaf_until_s = time.monotonic()
        strangers[0].sendall(pack_hello(Hello(Role.WORKER, 4, 0, 0, "f" * 16), bytes(32)))
        strangers[0].settimeout(0.01)
        pair.until(lambda: answered(strangers[0]))  # it was let in after all
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in fillers:
            os.close(descriptor)
        for stranger in strangers:
            stranger.close()


def answered(stranger: socket.socket) -> bool:
    try:
        return bool(stranger.recv(1))
    except TimeoutError:
        return False


def test_a_flood_of_strangers_is_one_line_and_then_one_a_minute_with_their_number() -> None:
    rejections = hub.Rejections()
    for number in range(1850):
        rejections.add(f"stranger {number}")
        told = rejections.due(now_s=number / 100)
        assert told == ([Rejected("stranger 0")] if number == 0 else [])
    assert rejections.due(59.9) == []
    assert rejections.due(60.0) == [Rejected("stranger 1849 (the last of 1849 turned away)")]
    assert rejections.due(1000.0) == []


def test_real_strangers_are_one_line_and_hide_no_peer_that_is_turned_away(pair: Pair) -> None:
    pair.server._admit = lambda hello: "another layout"  # type: ignore[assignment]
    for _ in range(20):
        with pair.raw() as stranger:
            stranger.sendall(bytes(200))
            stranger.settimeout(0.01)
            pair.until(lambda stranger=stranger: gone(stranger))  # type: ignore[misc]
    pair.worker.dial(pair.address, Hello(Role.WORKER, 3, 0, 0, "f" * 16))
    pair.wait_for(pair.worker, Left)
    pair.server.poll(0.0)
    told = [event.reason for event in pair.heard[pair.server] if isinstance(event, Rejected)]
    assert told == ["a stranger spoke (no handshake)", "worker 3 was turned away: another layout"]


def gone(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_one_host_has_no_more_than_its_share_of_the_waiting_places(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (hub.MOST_STRANGERS, hub.MOST_OF_A_HOST) == (512, 512 // 4)  # as SECURITY.md promises
    monkeypatch.setattr(hub, "MOST_OF_A_HOST", 3)
    strangers = [pair.raw() for _ in range(5)]
    told = pair.wait_for(pair.server, Rejected)
    assert (
        isinstance(told, Rejected) and "127.0.0.1 has 3 connections of 3 that have not said who they are" in told.reason
    )
    for stranger in strangers:
        stranger.settimeout(0.01)
    pair.until(lambda: sum(gone(stranger) for stranger in strangers[3:]) == 2)
    assert not any(gone(stranger) for stranger in strangers[:3])
    other = socket.create_connection(pair.address, timeout=10, source_address=("127.0.0.2", 0))  # finds a place
    other.sendall(pack_hello(Hello(Role.WORKER, 4, 0, 0, "f" * 16), bytes(32)))
    other.settimeout(0.01)
    pair.until(lambda: answered(other))
    for stranger in [*strangers, other]:
        stranger.close()


def test_all_hosts_together_have_no_more_than_the_waiting_places(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_STRANGERS", 3)
    hosts = [f"127.0.0.{number}" for number in range(2, 6)]
    strangers = [socket.create_connection(pair.address, timeout=10, source_address=(host, 0)) for host in hosts]
    told = pair.wait_for(pair.server, Rejected)
    for stranger in strangers:
        stranger.settimeout(0.01)
    assert isinstance(told, Rejected)
    assert told.reason == "127.0.0.5 has 0 connections of 3 that have not said who they are"
    pair.until(lambda: gone(strangers[3]))
    assert not any(gone(stranger) for stranger in strangers[:3])
    for stranger in strangers:
        stranger.close()


def test_a_stranger_that_says_nothing_is_cut_off(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HANDSHAKE_S", 0.3)
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
