"""The loop that moves the bytes of all TCP links, and each link's life: handshake, frames, last words, gone.

Nobody is waited for without end: a handshake and the last words of a link each have a deadline. Whose a link is, is
`hub`'s business, which is asked when a handshake is over and told when a link is gone.
"""

import math
import select
import selectors
import socket
import time
from collections.abc import Callable, Iterator

from param_servers.errors import BadMessage, Refused
from param_servers.timeouts import LINGER_S
from param_servers.wire.frames import Event, Frame, Message
from param_servers.wire.links import Link
from param_servers.wire.tcp_sockets import reason_of

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class LinkSelector:
    """A selector of links and at most one listening socket. A link is open from its first `watch` to its `drop`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._mask: dict[Link, int] = {}
        self._gone_bytes = (0, 0)

    def __contains__(self, link: Link) -> bool:
        return link in self._mask

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._mask))

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links."""
        sent, received = self._gone_bytes
        return sent + sum(link.bytes_sent for link in self._mask), received + sum(
            link.bytes_received for link in self._mask
        )

    def listen(self, listener: socket.socket) -> None:
        """Report connections that wait to be accepted."""
        self._selector.register(listener, READ, None)

    def ignore(self, listener: socket.socket) -> None:
        """Do not report them any more."""
        self._selector.unregister(listener)

    def wake_for(self, sock: socket.socket) -> None:
        """End a `select` when this socket can be read, without reporting it."""
        self._selector.register(sock, READ, sock)

    def watch(self, link: Link, mask: int) -> None:
        """Report when it can be read or written; 0: neither."""
        known = self._mask.get(link, 0)
        if link.sock.fileno() < 0 or (known == mask and link in self._mask):
            return
        if known and mask:
            self._selector.modify(link.sock, mask, link)
        elif mask:
            self._selector.register(link.sock, mask, link)
        elif known:
            self._selector.unregister(link.sock)
        self._mask[link] = mask

    def waits_to_write(self, link: Link) -> bool:
        """Whether the kernel took no more of it, and has not yet reported that it does."""
        return bool(self._mask.get(link, 0) & WRITE)

    def drop(self, link: Link) -> None:
        """Close it."""
        mask = self._mask.pop(link, None)
        if mask:
            self._selector.unregister(link.sock)
        if mask is not None:
            sent, received = self._gone_bytes
            self._gone_bytes = (sent + link.bytes_sent, received + link.bytes_received)
        link.sock.close()

    def wait_for(self, link: Link, timeout_s: float) -> bool:
        """Sleep until one link can be read, whatever else can. False, at once, while another one is to be written."""
        if link not in self._mask or any(mask & WRITE for mask in self._mask.values()):
            return False
        alone = select.poll()
        alone.register(link.sock, select.POLLIN)
        alone.poll(1e3 * timeout_s)
        return True

    def select(self, timeout_s: float) -> Iterator[tuple[Link | None, int]]:
        """(link, what it is ready for), and (None, …) for the listening socket."""
        for key, mask in self._selector.select(timeout_s):
            if key.data is None or isinstance(key.data, Link):
                yield key.data, mask

    def close(self) -> None:
        """The links must have been dropped. Safe to call twice."""
        self._selector.close()


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
        self._selector = LinkSelector()
        self._passing: dict[Link, float] = {}
        """Links in their handshake or their last words, with the time when patience ends."""
        self._dirty: dict[Link, None] = {}
        """Links with something to send, in the order in which they are to send."""
        self._listener: socket.socket | None = None
        self._deaf_until_s: float | None = None

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links."""
        return self._selector.bytes_moved

    @property
    def passing(self) -> int:
        """Links in their handshake or their last words."""
        return len(self._passing)

    def listen(self, listener: socket.socket) -> None:
        """Call `knocked` for the connections to this socket."""
        self._listener = listener
        self._selector.listen(listener)

    def pause_listening(self, pause_s: float) -> None:
        """Let connections wait in the kernel: one that cannot be accepted would wake this process up for ever."""
        if self._listener is not None and self._deaf_until_s is None:
            self._selector.ignore(self._listener)
            self._deaf_until_s = time.monotonic() + pause_s

    def wake_for(self, sock: socket.socket) -> None:
        """End a `poll` when this socket can be read."""
        self._selector.wake_for(sock)

    # -- a link's life -------------------------------------------------------------------------------------------

    def begin(self, link: Link, connecting: bool = False) -> None:
        """Shake hands on a new link: `greeted` or `lost` follows."""
        self._passing[link] = time.monotonic() + self._handshake_timeout_s
        self._selector.watch(link, READ | WRITE if connecting else READ)

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
        for link in self._selector:
            self._drop(link)
        self._listener = None
        self._selector.close()

    # -- moving bytes --------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float, until: Link | None = None) -> list[Event]:
        """See `Hub.poll`."""
        self.flush()
        if self.events:
            timeout_s = 0.0
        elif self._passing or self._deaf_until_s is not None:
            timeout_s = min(timeout_s, self._until_the_next_deadline())
        if until is not None and timeout_s > 0 and self._selector.wait_for(until, timeout_s):
            timeout_s = 0.0
        for link, mask in self._selector.select(timeout_s):
            if link is None:
                self._knocked()
                continue
            if mask & WRITE:
                self._flush(link)
            if mask & READ and link in self._selector:
                self._read(link)
        self._cut_off_the_slow()
        events, self.events = self.events, []
        return events

    def _until_the_next_deadline(self) -> float:
        now_s, deadlines = time.monotonic(), list(self._passing.values())
        if self._listener is not None and self._deaf_until_s is not None:
            if now_s >= self._deaf_until_s:
                self._deaf_until_s = None
                self._selector.listen(self._listener)
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
            if not self._selector.waits_to_write(link):
                self._flush(link)

    def _flush(self, link: Link) -> None:
        if link not in self._selector:
            return
        try:
            link.flush()
        except OSError as error:
            self._break(link, reason_of(error))
            return
        if link.closing and link.idle:
            self._half_close(link)
        self._selector.watch(link, READ | (WRITE if link.wants_to_send else 0))

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
                if link.peer is not None and link in self._selector:
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
        self._selector.drop(link)
