"""One framed, non-blocking TCP connection.

Why plain sockets and not torch.distributed's Gloo: on the machines this was measured on, sockets with `recv_into` moved
3.3 to 4.2 GB/s for 0.3 CPU-seconds per GB (two-rank Gloo links: 1.5 to 3.6 at 0.4 to 0.64) with five times shorter
round trips; the kernel's keepalive sees a half-open peer; there is no unauthenticated TCPStore, no private API and no
thread per peer; and a stream of bytes can be passed on before its end has arrived, a collective call's tensor cannot.
"""

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from param_servers.frames import Frame, ReceiveInto, place_for_payload, read_header
from param_servers.handshake import Dialer, Hello, Listener, Peer
from param_servers.messages import HEADER_BYTES, Header, Kind

READ_BUDGET_BYTES = 4 << 20
"""Most bytes read from one link before the others have their turn."""
WAKE_BYTES = 256 << 10
"""Of a longer payload, so many bytes are let come together before this process wakes up for them."""


class Link:
    """Frames over one connected, non-blocking socket; a handshake comes first.

    `send` queues and never blocks; `flush` and `receive` do what the kernel allows now. Errors are raised: OSError when
    the connection broke, BadMessage when the peer must not be believed.
    """

    def __init__(self, sock: socket.socket, handshake: Dialer | Listener, receive_into: ReceiveInto) -> None:
        self.sock = sock
        self.peer: Peer | None = None
        self.closing = False
        self.refusal = ""
        self.bytes_sent = self.bytes_received = 0
        self.wake_bytes = WAKE_BYTES
        self.least_frame_bytes = 1
        """Shortest frame that the peer sends, its header included: nothing less wakes this process up."""
        self._woken_by = 1
        self._handshake: Dialer | Listener | None = handshake
        self._receive_into = receive_into
        self._outbox: deque[Frame] = deque()
        self._sent = 0
        self._greeting = handshake.outgoing
        self._head = memoryview(bytearray(max(HEADER_BYTES, 512)))
        self._header: Header | None = None
        self._target = self._head[: handshake.wants]
        self._have = 0

    @property
    def hello(self) -> Hello | None:
        return self._handshake.hello if self._handshake is not None else None

    @property
    def receiving(self) -> tuple[Header, int] | None:
        """Header and bytes so far of the payload that is arriving now."""
        return (self._header, self._have) if self._header is not None else None

    @property
    def wants_to_send(self) -> bool:
        """Whether there is something to send now (not merely something that is still growing)."""
        if self._greeting:
            return True
        if self.peer is None or not self._outbox:
            return False
        frame = self._outbox[0]
        return self._sent < HEADER_BYTES + frame.available

    @property
    def idle(self) -> bool:
        return not self._outbox and not self._greeting

    def send(self, frame: Frame) -> None:
        """Queue a frame; a reference to its payload is kept until it is sent."""
        self._outbox.append(frame)

    def cancel(self, kind: Kind) -> None:
        """Drop queued frames of this kind that have not begun."""
        begun = self._outbox.popleft() if self._outbox and self._sent else None
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
        except (BlockingIOError, InterruptedError):
            return

    def _send_some(self, frame: Frame) -> None:
        if self._sent < HEADER_BYTES:
            sent = self.sock.sendmsg([frame.header[self._sent :], frame.payload[: frame.available]])
        else:
            sent = self.sock.send(frame.payload[self._sent - HEADER_BYTES : frame.available])
        self._sent += sent
        frame.sent = self._sent
        self.bytes_sent += sent
        if self._sent == HEADER_BYTES + len(frame.payload):
            self._outbox.popleft()
            self._sent = 0

    def receive(self) -> Iterator[tuple[Header, memoryview]]:
        """Read what has arrived; yield each complete frame. Yields nothing during the handshake."""
        yield from self._read()
        self.wake_for_enough()

    def wake_for_enough(self) -> None:
        """Let the kernel report this socket once there is enough to read, where it can do that.

        A wake-up for each packet of a long payload costs more than the packet. What is asked for is never more than
        what the frame still lacks, or its end would be waited for in vain.
        """
        enough = self.least_frame_bytes if not self._have else 1
        if self._header is not None:
            enough = min(self.wake_bytes, len(self._target) - self._have)
        if enough != self._woken_by and hasattr(socket, "SO_RCVLOWAT"):
            self._woken_by = enough
            with suppress(OSError):  # a broken link is noticed by the next poll
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)

    def _read(self) -> Iterator[tuple[Header, memoryview]]:
        budget = READ_BUDGET_BYTES
        while budget > 0:
            try:
                count = self.sock.recv_into(self._target[self._have :])
            except (BlockingIOError, InterruptedError):
                return
            if count == 0:
                raise ConnectionError("it closed the connection")
            self._have += count
            self.bytes_received += count
            budget -= count
            if self._have < len(self._target):
                return  # the kernel has no more: asking again would only be told so
            if self.peer is None:
                if self._advance_handshake():
                    return
            else:
                yield from self._advance_frame()

    def _advance_handshake(self) -> bool:
        """Feed the handshake; True when it has just been completed."""
        handshake = self._handshake
        assert handshake is not None
        self._greeting += handshake.feed(bytes(self._target))
        self._have = 0
        self._target = self._head[: handshake.wants or HEADER_BYTES]
        if not handshake.done:
            return False
        if isinstance(handshake, Listener):
            assert handshake.hello is not None
            self.peer = handshake.hello.peer
            self.refusal = handshake.refusal
            self.closing = bool(self.refusal)
        else:
            self.peer = handshake.peer
        return True

    def _advance_frame(self) -> Iterator[tuple[Header, memoryview]]:
        assert self.peer is not None
        if self._header is None:
            header = read_header(self.peer, self._target)
            if header.length == 0:
                yield header, self._head[:0]
                self._have = 0
                return
            self._target = place_for_payload(self.peer, header, self._receive_into)
            self._header, self._have = header, 0
            return
        header, payload = self._header, self._target
        self._header, self._target, self._have = None, self._head[:HEADER_BYTES], 0
        yield header, payload
