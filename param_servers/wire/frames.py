"""Frames over one connection: those on their way out, those that come out of the bytes that arrive, and the framed,
non-blocking TCP link that a handshake begins; and what a hub's `poll` returns, of which a whole frame is one.

Why plain sockets and not torch.distributed's Gloo: on the machines this was measured on, sockets with `recv_into` moved
3.3 to 4.2 GB/s for 0.3 CPU-seconds per GB (two-rank Gloo links: 1.5 to 3.6 at 0.4 to 0.64) with five times shorter
round trips; the kernel's keepalive sees a half-open peer; there is no unauthenticated TCPStore, no private API and no
thread per peer; and a stream of bytes can be passed on before its end has arrived, a collective call's tensor cannot.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from param_servers.errors import BadMessage
from param_servers.wire.handshake import Dialer, Hello, Listener, Peer
from param_servers.wire.messages import HEADER_BYTES, Code, Header, Kind, pack_header, unpack_header
from param_servers.wire.tcp_sockets import hold_little_unsent

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
    """Of the last one, and how many there were since this was last told."""


Event = Joined | Left | Message | Rejected


AHEAD_BYTES = 8 << 10
"""Read at once where no payload is expected; what a payload has of it is copied."""
READ_BUDGET_BYTES = 4 << 20
"""Most bytes read from one link before the others have their turn."""
WAKE_BYTES = 512 << 10
"""Of a longer payload, so many bytes are let come together before this process wakes up for them."""


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


class Link:
    """Frames over one connected, non-blocking socket; a handshake comes first.

    `send` queues and never blocks; `flush` and `receive` do what the kernel allows now. Errors are raised: OSError when
    the connection broke, BadMessage when the peer must not be believed.
    """

    def __init__(self, sock: socket.socket, handshake: Dialer | Listener, receive_into: ReceiveInto) -> None:
        self.sock = sock
        self.peer: Peer | None = None
        self.wanted: Peer | None = None
        """The peer that it was dialled to reach, until that has joined."""
        self.stranger_of = ""
        """Its host, where it was accepted and its handshake is not over."""
        self.closing = False
        self.refusal = ""
        self.bytes_sent = self.bytes_received = 0
        self.wake_bytes = WAKE_BYTES
        self.least_frame_bytes = 1
        """Shortest frame that the peer sends, its header included: nothing less wakes this process up."""
        self._woken_by = 1
        self._handshake = handshake
        self._receive_into = receive_into
        self._outbox: deque[Frame] = deque()
        self._streams = False
        self._greeting = handshake.outgoing
        self._wanted, self._have = memoryview(bytearray(handshake.wants)), 0
        """What comes next of the handshake, and how much of it is here."""
        self._incoming: Incoming | None = None
        """Frames, once the handshake is over."""

    @property
    def hello(self) -> Hello | None:
        return self._handshake.hello

    @property
    def receiving(self) -> tuple[Header, int] | None:
        return self._incoming.receiving if self._incoming is not None else None

    @property
    def wants_to_send(self) -> bool:
        """Whether there is something to send now (not merely something that is still growing)."""
        if self._greeting:
            return True
        if self.peer is None or not self._outbox:
            return False
        frame = self._outbox[0]
        if not frame.sent and frame.payload and not frame.available:
            return False  # a header alone would wake the peer up for nothing
        return frame.sent < HEADER_BYTES + frame.available

    @property
    def idle(self) -> bool:
        return not self._outbox and not self._greeting

    def send(self, frame: Frame) -> None:
        """Queue a frame; a reference to its payload is kept until it is sent."""
        if frame.available < len(frame.payload) and not self._streams:
            self._streams = True  # it grows at the pace of other links too: what this one has sent is to be known
            hold_little_unsent(self.sock)
        self._outbox.append(frame)

    def cancel(self, kind: Kind) -> None:
        """Drop queued frames of this kind that have not begun."""
        begun = self._outbox.popleft() if self._outbox and self._outbox[0].sent else None
        self._outbox = deque(frame for frame in self._outbox if frame.kind != kind)
        if begun is not None:
            self._outbox.appendleft(begun)

    def flush(self) -> None:
        """Send until the queue is empty or the kernel takes no more."""
        try:
            if self._greeting:
                self._greeting = self._greeting[self.sock.send(self._greeting) :]
            while self.wants_to_send and not self._greeting:
                self._send_some(self._outbox[0])
        except BlockingIOError:
            return

    def _send_some(self, frame: Frame) -> None:
        if frame.sent < HEADER_BYTES:
            sent = self.sock.sendmsg([frame.header[frame.sent :], frame.payload[: frame.available]])
        else:
            sent = self.sock.send(frame.payload[frame.sent - HEADER_BYTES : frame.available])
        frame.sent += sent
        self.bytes_sent += sent
        if frame.sent == HEADER_BYTES + len(frame.payload):
            self._outbox.popleft()

    def receive(self) -> Iterator[tuple[Header, memoryview]]:
        """Read what has arrived; yield each complete frame. Yields nothing during the handshake."""
        incoming = self._incoming
        if incoming is None:
            self._shake_hands()
            return
        budget = READ_BUDGET_BYTES
        with suppress(BlockingIOError):
            while budget > 0:
                places = incoming.places
                count = self._received(self.sock.recvmsg_into(places)[0])
                budget -= count
                yield from incoming.took(count)
                if count < sum(map(len, places)):
                    break  # the kernel has no more: asking again would only be told so
        self.wake_for_enough()

    def wake_for_enough(self) -> None:
        """Let the kernel report this socket once there is enough to read.

        A wake-up for each packet of a long payload costs more than the packet. What is asked for is never more than
        what will come for certain, or the end of a frame would be waited for in vain.
        """
        enough = 1
        if self._incoming is not None and not self._incoming.begun:
            enough = self.least_frame_bytes
        elif self.receiving is not None:
            header, have = self.receiving
            then = HEADER_BYTES if header.code == Code.STREAMED else 0  # SEALED or ABORTED is always next
            enough = min(self.wake_bytes, header.length - have + then)
        if enough != self._woken_by:
            self._woken_by = enough
            with suppress(OSError):  # a broken link is noticed by the next poll
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)

    def _received(self, count: int) -> int:
        if count == 0:
            raise ConnectionError("it closed the connection")
        self.bytes_received += count
        return count

    def _shake_hands(self) -> None:
        """Read to the end of the handshake and no further: who it is must be known before it is heard."""
        while self._incoming is None:
            try:
                self._have += self._received(self.sock.recv_into(self._wanted[self._have :]))
            except BlockingIOError:
                return
            if self._have < len(self._wanted):
                return
            self._advance_handshake()

    def _advance_handshake(self) -> None:
        handshake = self._handshake
        self._greeting += handshake.feed(bytes(self._wanted))
        self._wanted, self._have = memoryview(bytearray(handshake.wants)), 0
        if not handshake.done:
            return
        if isinstance(handshake, Listener):
            assert handshake.hello is not None
            self.peer = handshake.hello.peer
            self.refusal = handshake.refusal
            self.closing = bool(self.refusal)
        else:
            self.peer = handshake.peer
        self._incoming = Incoming(self.peer, self._receive_into)
