"""Frames as bytes: one on its way out, and those that come out of the bytes of one connection; and what a hub's `poll`
returns, of which a whole frame is one. No sockets."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from param_servers.errors import BadMessage
from param_servers.wire.handshake import Hello, Peer
from param_servers.wire.messages import HEADER_BYTES, Header, pack_header, unpack_header

ReceiveInto = Callable[[Peer, Header], memoryview]
"""Checks the header of a frame with a payload and gives the `length` bytes to receive it into, or raises BadMessage."""


class Frame:
    """An outgoing frame. Its payload may still be growing: only the first `available` bytes are sent, and only
    `Hub.allow` makes them more."""

    __slots__ = ("available", "header", "kind", "payload", "sent")

    def __init__(self, header: Header, payload: memoryview | None = None, available: int | None = None) -> None:
        self.payload = payload if payload is not None else memoryview(b"")
        self.kind = header.kind
        self.header = memoryview(pack_header(header, len(self.payload)))
        self.available = len(self.payload) if available is None else available
        self.sent = 0
        """Bytes of header and payload that the kernel has taken."""


class Joined(NamedTuple):
    """A peer proved itself. A second one of the same role and rank replaces the first, which is Left before."""

    peer: Peer
    hello: Hello


class Left(NamedTuple):
    """A link is gone, or could not be made."""

    peer: Peer
    reason: str
    refused: bool = False
    """The other side turned this process away: dialling again is useless."""


class Message(NamedTuple):
    """A complete frame; `payload` lies where `receive_into` put it.

    The peer's next frame may have begun to arrive before this event is seen: `receive_into` was called for it already.
    """

    peer: Peer
    header: Header
    payload: memoryview


class Rejected(NamedTuple):
    """Strangers were turned away, or peers."""

    reason: str
    """Of the last one."""
    number: int = 1
    """So many since this was last told."""


Event = Joined | Left | Message | Rejected


AHEAD_BYTES = 8 << 10
"""Read at once where no payload is expected; what a payload has of it is copied."""


class Incoming:
    """Frames out of the bytes that `peer` sends: whoever receives asks for `places` and tells what it `took`.

    Short frames are read several at once, and a look ahead behind each long payload tells that nothing follows: a
    frame then costs one system call instead of one for its header, one for its payload and one to be told to try again.

    Args:
        receive_into: see `frames.ReceiveInto`.
    """

    def __init__(self, peer: Peer, receive_into: ReceiveInto) -> None:
        self._peer, self._receive_into = peer, receive_into
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._held = 0
        """Bytes of `_ahead` that are not used yet: less than a header."""
        self._header: Header | None = None
        self._payload = self._ahead[:0]
        self._have = 0
        """Bytes of the payload."""

    @property
    def receiving(self) -> tuple[Header, int] | None:
        """Header and bytes so far of the payload that is arriving now."""
        return (self._header, self._have) if self._header is not None else None

    @property
    def begun(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self._header is not None or self._held > 0

    @property
    def places(self) -> list[memoryview]:
        """Where the next bytes go, in this order."""
        ahead = self._ahead[self._held :]
        return [ahead] if self._header is None else [self._payload[self._have :], ahead]

    def took(self, count: int) -> Iterator[tuple[Header, memoryview]]:
        """So many bytes have been put into `places`: yield each complete frame.

        Raises:
            BadMessage: what came is no frame of this peer, or not expected from it.
        """
        if self._header is not None:
            own = min(count, len(self._payload) - self._have)
            self._have += own
            count -= own
            if self._have < len(self._payload):
                return
            yield self._whole(self._header)
        self._held += count
        yield from self._frames_ahead()

    def _frames_ahead(self) -> Iterator[tuple[Header, memoryview]]:
        start, stop = 0, self._held
        while self._header is None and stop - start >= HEADER_BYTES:
            header = unpack_header(self._ahead[start : start + HEADER_BYTES])
            if header.sender != self._peer.rank:
                raise BadMessage(f"it signs as rank {header.sender}")
            start += HEADER_BYTES
            self._payload = self._receive_into(self._peer, header) if header.length else self._ahead[:0]
            if len(self._payload) != header.length:
                raise BadMessage(f"a {header.kind.name} of {header.length} bytes instead of {len(self._payload)}")
            self._header, self._have = header, min(header.length, stop - start)
            self._payload[: self._have] = self._ahead[start : start + self._have]
            start += self._have
            if self._have == header.length:
                yield self._whole(header)
        if start:
            self._ahead[: stop - start] = bytes(self._ahead[start:stop])
        self._held = stop - start

    def _whole(self, header: Header) -> tuple[Header, memoryview]:
        payload, self._header, self._have = self._payload, None, 0
        return header, payload
