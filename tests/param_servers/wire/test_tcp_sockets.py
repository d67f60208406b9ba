"""What a socket is told before frames travel on it."""

import socket
from contextlib import closing

import pytest

from param_servers.timeouts import LONGEST_S
from param_servers.wire.frames import Frame
from param_servers.wire.messages import Header, Kind
from param_servers.wire.tcp_sockets import MOST_SILENCE_S, UNSENT_BYTES, hold_little_unsent
from tests.param_servers.wire.hub_pair import SERVER, Pair

_PAYLOAD = bytes(1 << 16)


def own_address() -> str:
    """An address of this host by which it does not look like loopback."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only asks for the way
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def taken(host: str, little: bool) -> int:
    """Bytes that the kernel takes for a peer that does not read."""
    with closing(socket.create_server((host, 0))) as listener, closing(socket.socket()) as sender:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sender.connect(listener.getsockname())
        sender.setblocking(False)
        if little:
            hold_little_unsent(sender)
        count = 0
        with closing(listener.accept()[0]), pytest.raises(BlockingIOError):
            while True:
                count += sender.send(_PAYLOAD)
    return count


def test_a_link_to_another_host_that_streams_holds_little_that_is_not_sent() -> None:
    host = own_address()
    if not host:
        pytest.skip("this host has no address but loopback")
    assert taken(host, little=True) < UNSENT_BYTES + len(_PAYLOAD) + (64 << 10) < taken(host, little=False)


def test_only_a_link_that_streams_is_told_so() -> None:
    host = own_address()
    if not host:
        pytest.skip("this host has no address but loopback")
    pair = Pair(host)
    try:
        pair.connect()
        unsent = lambda: pair.worker._links[SERVER].sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)  # noqa: E731
        header = Header(Kind.GRADIENT, sender=3)
        pair.worker.send(SERVER, header, memoryview(_PAYLOAD))
        assert unsent() != UNSENT_BYTES
        pair.worker.stream(SERVER, Frame(header, memoryview(_PAYLOAD), available=1000))
        assert unsent() == UNSENT_BYTES
    finally:
        pair.worker.shut()
        pair.server.shut()


def test_on_loopback_the_kernel_takes_what_it_likes() -> None:
    assert taken("127.0.0.1", little=True) > UNSENT_BYTES + len(_PAYLOAD) + (64 << 10)


@pytest.mark.parametrize("silence_s", [1e-3, MOST_SILENCE_S, MOST_SILENCE_S + 3, LONGEST_S])
def test_a_link_is_made_however_long_its_silence_is_borne(silence_s: float) -> None:
    pair = Pair()
    pair.server._silence_timeout_s = pair.worker._silence_timeout_s = silence_s
    try:
        pair.connect()
    finally:
        pair.worker.shut()
        pair.server.shut()
