"""A frame on its way out, and what is believed of one that comes in, whatever carries them."""

from collections.abc import Callable

from param_servers.errors import BadMessage
from param_servers.wire.handshake import Peer
from param_servers.wire.messages import Header, pack_header, unpack_header

ReceiveInto = Callable[[Peer, Header], memoryview]
"""Checks the header of a frame with a payload and gives the `length` bytes to receive it into, or raises BadMessage."""


class Frame:
    """An outgoing frame. Its payload may still be growing: only the first `available` bytes are sent."""

    __slots__ = ("available", "header", "kind", "payload", "sent")

    def __init__(self, header: Header, payload: memoryview | None = None, available: int | None = None) -> None:
        self.payload = payload if payload is not None else memoryview(b"")
        self.kind = header.kind
        self.header = memoryview(pack_header(header, len(self.payload)))
        self.available = len(self.payload) if available is None else available
        self.sent = 0
        """Bytes of header and payload that the kernel has taken."""


def read_header(peer: Peer, data: bytearray | memoryview) -> Header:
    """The header of a frame that came from `peer`.

    Raises:
        BadMessage: it is none, or another rank's.
    """
    header = unpack_header(data)
    if header.sender != peer.rank:
        raise BadMessage(f"it signs as rank {header.sender}")
    return header


def place_for_payload(peer: Peer, header: Header, receive_into: ReceiveInto) -> memoryview:
    """The `header.length` bytes that the payload goes into.

    Raises:
        BadMessage: such a frame is not expected from this peer, or not of this length.
    """
    place = receive_into(peer, header)
    if len(place) != header.length:
        raise BadMessage(f"a {header.kind.name} of {header.length} bytes instead of {len(place)}")
    return place
