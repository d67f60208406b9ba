"""The loop that moves the bytes of all TCP links, and each link's life: handshake, frames, last words, gone.

Nobody is waited for without end: a handshake and the last words of a link each have a deadline. Whose a link is, is
`hub`'s business, which is asked when a handshake is over and told when a link is gone.
"""

import math
import selectors
import socket
import time
from collections.abc import Callable

from param_servers.errors import BadMessage, Refused
from param_servers.timeouts import LINGER_S
from param_servers.wire.frames import Event, Frame, Message
from param_servers.wire.links import Link
from param_servers.wire.tcp_sockets import reason_of

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class LinkLoop:
    """Open links, of which none blocks another.

    Args:
        handshake_timeout_s: a link whose handshake takes longer is lost.
        knocked: called when a connection waits to be accepted.
        greeted: called with a link whose handshake is over, so that its `peer` is known; must `keep` or `linger` it.
        lost: called with (link, reason, whether the other side refused) after a link broke; not for lingering ones.
    """

    def __init__(
        self,
        handshake_timeout_s: float,
        knocked: Callable[[], None],
        greeted: Callable[[Link], None],
        lost: Callable[[Link, str, bool], None],
    ) -> None:
        self.events: list[Event] = []
        """What the next `poll` returns."""
        self._handshake_timeout_s = handshake_timeout_s
        self._knocked, self._greeted, self._lost = knocked, greeted, lost
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Link, int] = {}
        """Open links, and what each is watched for: to read, to write."""
        self._gone_bytes = (0, 0)
        """Sent and received over links that are gone."""
        self._passing: dict[Link, float] = {}
        """Links in their handshake or their last words, with the time when patience ends."""
        self._dirty: dict[Link, None] = {}
        """Links with something to send, in the order in which they are to send."""
        self._listener: socket.socket | None = None
        self._deaf_until_s: float | None = None

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links."""
        sent, received = self._gone_bytes
        return (
            sent + sum(link.bytes_sent for link in self._watched),
            received + sum(link.bytes_received for link in self._watched),
        )

    @property
    def passing(self) -> int:
        """Links in their handshake or their last words."""
        return len(self._passing)

    def listen(self, listener: socket.socket) -> None:
        """Call `knocked` for the connections to this socket."""
        self._listener = listener
        self._selector.register(listener, READ, listener)

    def pause_listening(self, pause_s: float) -> None:
        """Let connections wait in the kernel: one that cannot be accepted would wake this process up for ever."""
        if self._listener is not None and self._deaf_until_s is None:
            self._selector.unregister(self._listener)
            self._deaf_until_s = time.monotonic() + pause_s

    def wake_for(self, sock: socket.socket) -> None:
        """End a `poll` when this socket can be read."""
        self._selector.register(sock, READ, sock)

    # -- a link's life -------------------------------------------------------------------------------------------

    def begin(self, link: Link, connecting: bool = False) -> None:
        """Shake hands on a new link: `greeted` or `lost` follows."""
        self._passing[link] = time.monotonic() + self._handshake_timeout_s
        self._watch(link, READ | WRITE if connecting else READ)

    def keep(self, link: Link) -> None:
        """It is a peer's now, for as long as it holds."""
        del self._passing[link]

    def send(self, link: Link, frame: Frame) -> None:
        """Queue a frame."""
        link.send(frame)
        self._dirty[link] = None

    def grown(self, link: Link) -> None:
        """More of its frames may be sent."""
        self._dirty[link] = None

    def linger(self, link: Link) -> None:
        """Send what is queued, then close; cut off after LINGER_S."""
        link.closing = True
        self._passing[link] = time.monotonic() + LINGER_S
        self._flush(link)

    def shut(self) -> None:
        """Close every link at once. Safe to call twice."""
        for link in list(self._watched):
            self._drop(link)
        self._listener = None
        self._selector.close()

    # -- moving bytes --------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """See `Hub.poll`."""
        self.flush()
        if self.events:
            timeout_s = 0.0
        elif self._passing or self._deaf_until_s is not None:
            timeout_s = min(timeout_s, self._until_the_next_deadline())
        for key, mask in self._selector.select(timeout_s):
            if key.data is self._listener:
                self._knocked()
            elif isinstance(key.data, Link):
                if mask & WRITE:
                    self._flush(key.data)
                if mask & READ and key.data in self._watched:
                    self._read(key.data)
        self._cut_off_the_slow()
        events, self.events = self.events, []
        return events

    def _until_the_next_deadline(self) -> float:
        now_s, deadlines = time.monotonic(), list(self._passing.values())
        if self._listener is not None and self._deaf_until_s is not None:
            if now_s >= self._deaf_until_s:
                self._deaf_until_s = None
                self._selector.register(self._listener, READ, self._listener)
            else:
                deadlines.append(self._deaf_until_s)
        return max(0.0, min(deadlines, default=math.inf) - now_s)

    def let_pass(self, timeout_s: float) -> None:
        """Wait until no link is in its handshake or its last words; what happens meanwhile nobody learns."""
        deadline_s = time.monotonic() + timeout_s
        while self._passing and time.monotonic() < deadline_s:
            self.poll(0.05)

    def flush(self) -> None:
        """See `Hub.flush`."""
        dirty, self._dirty = self._dirty, {}
        for link in dirty:
            if not self._watched.get(link, 0) & WRITE:
                self._flush(link)

    def _flush(self, link: Link) -> None:
        if link not in self._watched:
            return
        try:
            link.flush()
        except OSError as error:
            self._break(link, reason_of(error))
            return
        if link.closing and link.idle:
            self._half_close(link)
        self._watch(link, READ | (WRITE if link.wants_to_send else 0))

    def _watch(self, link: Link, mask: int) -> None:
        """Look at a link when it can be read or written. It is open from its first call to its `_drop`."""
        known = self._watched.get(link)
        if known == mask or link.sock.fileno() < 0:
            return
        if known is None:
            self._selector.register(link.sock, mask, link)
        else:
            self._selector.modify(link.sock, mask, link)
        self._watched[link] = mask

    def _read(self, link: Link) -> None:
        try:
            if link.closing:
                if not link.sock.recv(1 << 16):
                    self._drop(link)
                return
            was_stranger = link.peer is None
            for header, payload in link.receive():
                assert link.peer is not None
                self.events.append(Message(link.peer, header, payload))
            if was_stranger:
                self._flush(link)
                if link.peer is not None and link in self._watched:
                    self._greeted(link)
        except BlockingIOError:
            return
        except (BadMessage, Refused, OSError) as error:
            self._break(link, reason_of(error), isinstance(error, Refused))

    # -- how a link ends -----------------------------------------------------------------------------------------

    def _half_close(self, link: Link) -> None:
        # Closing at once with unread bytes would make the kernel throw away our last words.
        try:
            link.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(link)

    def _cut_off_the_slow(self) -> None:
        if not self._passing:
            return
        now_s = time.monotonic()
        for link, deadline_s in list(self._passing.items()):
            if now_s >= deadline_s:
                self._break(link, f"the handshake took more than {self._handshake_timeout_s:g} s")

    def _break(self, link: Link, reason: str, refused: bool = False) -> None:
        self._drop(link)
        if not link.closing:
            self._lost(link, reason, refused)

    def _drop(self, link: Link) -> None:
        self._passing.pop(link, None)
        if self._watched.pop(link, None) is not None:
            self._selector.unregister(link.sock)
            sent, received = self._gone_bytes
            self._gone_bytes = (sent + link.bytes_sent, received + link.bytes_received)
        link.sock.close()
