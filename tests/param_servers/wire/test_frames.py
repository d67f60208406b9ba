"""Frames out of a stream of bytes, however it is cut."""

import pytest

from param_servers.errors import BadMessage
from param_servers.wire.frames import AHEAD_BYTES, Incoming
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.messages import HEADER_BYTES, Header, Kind, pack_header

WORKER = Peer(Role.WORKER, 3)
PAYLOADS = [b"", b"first", b"", bytes(range(256)) * 100, b"x" * (AHEAD_BYTES - HEADER_BYTES), b"last"]


def frame(step: int, payload: bytes, sender: int = 3) -> bytes:
    return pack_header(Header(Kind.GRADIENT, sender, step=step, length=len(payload))) + payload


def feed(incoming: Incoming, data: bytes, most: int) -> list[tuple[int, bytes]]:
    """What comes out when `most` bytes at a time are there to be read."""
    found: list[tuple[int, bytes]] = []
    while data:
        piece, count = data[:most], 0
        for place in incoming.places:
            part = piece[count : count + len(place)]
            place[: len(part)] = part
            count += len(part)
        found += [(header.step, bytes(payload)) for header, payload in incoming.took(count)]
        data = data[count:]
    return found


@pytest.mark.parametrize("most", [1, 7, HEADER_BYTES, HEADER_BYTES + 5, 1000, AHEAD_BYTES, 1 << 20])
def test_every_frame_comes_out_whole_however_the_stream_is_cut(most: int) -> None:
    incoming = Incoming(WORKER, lambda peer, header: memoryview(bytearray(header.length)))
    data = b"".join(frame(step, payload) for step, payload in enumerate(PAYLOADS))
    assert feed(incoming, data, most) == list(enumerate(PAYLOADS))
    assert not incoming.begun


def test_short_frames_that_arrive_together_are_read_at_once() -> None:
    incoming = Incoming(WORKER, lambda peer, header: memoryview(bytearray(header.length)))
    data = frame(1, b"a") + frame(2, b"b") + frame(3, b"c")[:10]
    incoming.places[0][: len(data)] = data
    assert [header.step for header, _ in incoming.took(len(data))] == [1, 2]
    assert incoming.begun and incoming.receiving is None


def test_a_payload_is_received_where_it_belongs_and_counted_while_it_arrives() -> None:
    place = bytearray(1000)
    incoming = Incoming(WORKER, lambda peer, header: memoryview(place))
    assert feed(incoming, frame(1, b"y" * 1000)[: HEADER_BYTES + 600], 1 << 20) == []
    receiving = incoming.receiving
    assert receiving is not None and (receiving[0].step, receiving[1]) == (1, 600)
    assert place[:600] == b"y" * 600


def test_frames_before_a_bad_one_are_heard() -> None:
    incoming = Incoming(WORKER, lambda peer, header: memoryview(bytearray(header.length)))
    data = frame(1, b"good") + frame(2, b"bad", sender=4)
    incoming.places[0][: len(data)] = data
    frames = incoming.took(len(data))
    assert next(frames)[0].step == 1
    with pytest.raises(BadMessage, match="signs as rank 4"):
        next(frames)
