"""All links of one process behind one `poll`, over TCP: the same loop in servers and in workers, without threads.

    hub.send(peer, header, payload)         queue; never blocks
    for event in hub.poll(timeout_s): ...   Joined, Left(reason), Message or Rejected

Which link is whose, and who may have one, is known here. A link's life is a handshake, frames, last words, gone; nobody
is waited for without end: the handshake and the last words each have a deadline.
"""

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

from param_servers.errors import BadMessage, Refused
from param_servers.timeouts import HANDSHAKE_S, LINGER_S
from param_servers.wire.frames import WAKE_BYTES, Event, Frame, Joined, Left, Link, Message, ReceiveInto, Rejected
from param_servers.wire.handshake import Dialer, Hello, Listener, Peer, check_secret
from param_servers.wire.messages import Code, Header, Kind
from param_servers.wire.tcp_sockets import accept, begin_to_connect, open_listener, reason_of

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
MOST_STRANGERS = 512
"""Connections whose handshake is not done; beyond this the newest are closed."""
MOST_OF_A_HOST = 128
"""Of these, so many of one host: others still find a place."""
PAUSE_S = 1.0
"""When no connection can be accepted (no more files can be opened), the next is tried so much later."""


class Rejections:
    """Those that are turned away: the first is told at once, then as one `Rejected` in `EVERY_S`, however many come."""

    EVERY_S = 60.0

    def __init__(self) -> None:
        self._reason, self.count, self._next_s = "", 0, -math.inf

    def add(self, reason: str) -> None:
        self._reason, self.count = reason, self.count + 1

    def due(self, now_s: float) -> list[Rejected]:
        if not self.count or now_s < self._next_s:
            return []
        reason = self._reason if self.count == 1 else f"{self._reason} (the last of {self.count} turned away)"
        told, self.count, self._next_s = Rejected(reason), 0, now_s + self.EVERY_S
        return [told]


class Hub:
    """Links by peer, of which none blocks another.

    Args:
        secret: the run's secret, which every peer must prove to know.
        receive_into: see `frames.ReceiveInto`.
        shard, admit: for listening processes: own shard, and who may join ("" or one line why not).
        silence_timeout_s: a host that does not acknowledge bytes for this long is Left.
    """

    def __init__(
        self,
        secret: bytes,
        receive_into: ReceiveInto,
        *,
        shard: int = 0,
        admit: Callable[[Hello], str] = lambda hello: "",
        silence_timeout_s: float = 60.0,
    ) -> None:
        check_secret(secret)
        self._secret, self._receive_into, self._shard, self._admit = secret, receive_into, shard, admit
        self._silence_timeout_s = silence_timeout_s
        self._selector = selectors.DefaultSelector()
        self._events: list[Event] = []
        """What the next `poll` returns."""
        self._links: dict[Peer, Link] = {}
        self._watched: dict[Link, int] = {}
        """Open links, and what each is watched for: to read, to write."""
        self._passing: dict[Link, float] = {}
        """Links in their handshake or their last words, with the time when patience ends."""
        self._held: set[Link] = set()
        """Links that are not read."""
        self._dirty: dict[Link, None] = {}
        """Links with something to send, in the order in which they are to send."""
        self._rejected, self._refused = Rejections(), Rejections()
        """Strangers, of which a flood shall not hide what peers are told."""
        self._gone_bytes = (0, 0)
        """Sent and received over links that are gone."""
        self._wake_bytes = WAKE_BYTES
        self._linger_s = LINGER_S
        """How long a link that is being closed may stand still."""
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

    # -- frames --------------------------------------------------------------------------------------------------

    def connected(self, peer: Peer) -> bool:
        return peer in self._links

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> bool:
        """Queue a frame; False when the peer is not connected. The payload must not change until it is sent."""
        return self.stream(peer, Frame(header, payload))

    def stream(self, peer: Peer, frame: Frame) -> bool:
        """Queue a frame, of whose payload no more is sent than `allow` lets. False: the peer is not connected."""
        link = self._links.get(peer)
        if link is None:
            return False
        link.send(frame)
        self._dirty[link] = None
        return True

    def allow(self, peer: Peer, frame: Frame, size: int) -> None:
        """Let the first `size` bytes of a streamed frame's payload be sent, whose peer may be gone."""
        link = self._links.get(peer)
        if size > frame.available:
            frame.available = size
            if link is not None:
                self._dirty[link] = None

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        """Header and bytes so far of the payload that is arriving from this peer."""
        link = self._links.get(peer)
        return link.receiving if link is not None else None

    def hold(self, peers: Collection[Peer]) -> None:
        """Read nothing from these peers, and from all others again: once their windows are full they wait."""
        held = {self._links[peer] for peer in peers if peer in self._links}
        changed, self._held = self._held ^ held, held
        for link in changed & self._watched.keys():
            self._watch(link, READ | (self._watched[link] & WRITE))

    def expect(self, peer: Peer, least_bytes: int) -> None:
        """Nothing shorter than this comes from a peer: do not wake up for less."""
        link = self._links.get(peer)
        if link is not None:
            link.least_frame_bytes = least_bytes
            link.wake_for_enough()

    def cancel(self, peer: Peer, kind: Kind) -> None:
        """Drop queued frames of a kind that have not begun."""
        link = self._links.get(peer)
        if link is not None:
            link.cancel(kind)

    def poll(self, timeout_s: float) -> list[Event]:
        """Move bytes for at most `timeout_s` (0: only what can move now) and return what happened."""
        self.flush()
        if self._events:
            timeout_s = 0.0
        elif self._passing or self._deaf_until_s is not None:
            timeout_s = min(timeout_s, self._until_the_next_deadline())
        for key, mask in self._selector.select(timeout_s):
            if key.data is self._listener:
                self._accept()
            elif isinstance(key.data, Link):
                # First: where nothing can be sent any more, the last words are read all the same.
                if mask & READ and key.data in self._watched:
                    self._read(key.data)
                if mask & WRITE:
                    self._flush(key.data)
        now_s = time.monotonic()
        for link, deadline_s in list(self._passing.items()):
            if now_s >= deadline_s:
                self._break(link, f"the handshake took more than {HANDSHAKE_S:g} s")
        for rejections in (self._rejected, self._refused):
            self._events += rejections.due(now_s)
        events, self._events = self._events, []
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

    def flush(self) -> None:
        """Send what can be sent now of what was queued since the last poll.

        A link that took no more the last time is tried again by `poll`, when it does.
        """
        dirty, self._dirty = self._dirty, {}
        for link in dirty:
            if not self._watched.get(link, 0) & WRITE:
                self._flush(link)

    def _flush(self, link: Link) -> None:
        if link not in self._watched:
            return
        sent = link.bytes_sent
        try:
            link.flush()
        except OSError as error:
            self._break(link, reason_of(error))
            return
        if link.closing and link.bytes_sent > sent:
            self._passing[link] = time.monotonic() + self._linger_s
        if link.closing and link.idle:
            self._half_close(link)
        self._watch(link, READ | (WRITE if link.wants_to_send else 0))

    def _watch(self, link: Link, mask: int) -> None:
        """Look at a link when it can be read or written. It is open from its first call to its `_drop`."""
        known = self._watched.get(link)
        if link in self._held:
            mask &= WRITE
        if known == mask or link.sock.fileno() < 0:
            return
        if not known:
            self._selector.register(link.sock, mask, link)
        elif not mask:
            self._selector.unregister(link.sock)
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
                self._events.append(Message(link.peer, header, payload))
            if was_stranger:
                self._flush(link)
                if link.peer is not None and link in self._watched:
                    self._welcome(link)
        except BlockingIOError:
            return
        except (BadMessage, Refused, OSError) as error:
            self._break(link, reason_of(error), isinstance(error, Refused))

    # -- how a link begins ---------------------------------------------------------------------------------------

    def listen(self, host: str, port: int = 0, window_bytes: int | None = None) -> tuple[str, int]:
        """Accept peers; returns the address bound.

        Args:
            window_bytes: most that the kernel receives ahead on a link from another host; None: the kernel's choice, as
                always on loopback, which has no queue that could overflow.

        Raises:
            OSError: the address is taken.
        """
        self._listener = listener = open_listener(host, port, window_bytes)
        if window_bytes is not None:
            self._wake_bytes = 1  # what arrives is passed on at once
        self._selector.register(listener, READ, listener)
        address = listener.getsockname()
        return str(address[0]), int(address[1])

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        """Begin to connect; Joined or Left(server `hello.shard`) follows."""
        dialer = Dialer(self._secret, hello)
        try:
            sock = begin_to_connect(address, self._silence_timeout_s)
        except OSError as error:
            why = f"cannot connect to {address[0]}:{address[1]}: {reason_of(error)}"
            self._events.append(Left(dialer.peer, why))
            return
        link = Link(sock, dialer, self._receive_into)
        link.wanted = dialer.peer
        self._shake_hands(link, READ | WRITE)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted = accept(self._listener, self._silence_timeout_s)
        except OSError as error:  # the connection waits in the kernel, and would wake this process up for ever
            self._rejected.add(f"no connection can be accepted: {reason_of(error)}")
            self._selector.unregister(self._listener)
            self._deaf_until_s = time.monotonic() + PAUSE_S
            return
        if accepted is None:
            return
        sock, host = accepted
        waiting, passing = sum(link.stranger_of == host for link in self._passing), len(self._passing)
        if waiting >= MOST_OF_A_HOST or passing >= MOST_STRANGERS:
            self._rejected.add(f"{host} has {waiting} connections of {passing} that have not said who they are")
            sock.close()
            return
        link = Link(sock, Listener(self._secret, self._shard, self._admit), self._receive_into)
        link.wake_bytes = self._wake_bytes
        link.stranger_of = host
        self._shake_hands(link, READ)

    def _shake_hands(self, link: Link, mask: int) -> None:
        """`_welcome` or `_break` follows."""
        self._passing[link] = time.monotonic() + HANDSHAKE_S
        self._watch(link, mask)

    def _welcome(self, link: Link) -> None:
        peer, hello = link.peer, link.hello
        assert peer is not None and hello is not None
        link.stranger_of = ""
        if link.closing:
            self._refused.add(f"{peer} was turned away: {link.refusal}")
            self._linger(link)
            return
        del self._passing[link]
        link.wanted = None
        before = self._links.get(peer)
        self._links[peer] = link  # first, so that a predecessor found broken now is not Left a second time
        if before is not None:
            self._events.append(Left(peer, "it connected again"))
            words = f"another process connected as {peer}, incarnation {hello.incarnation}"
            header = Header(Kind.EXPELLED, sender=self._shard, code=Code.FAILED)
            before.send(Frame(header, memoryview(words.encode())))
            self._linger(before)
        self._events.append(Joined(peer, hello))

    # -- how a link ends -----------------------------------------------------------------------------------------

    def close(self, peer: Peer) -> None:
        """Send what is queued, then close; no Left follows. A peer that reads nothing for `timeouts.LINGER_S` is cut
        off."""
        link = self._links.pop(peer, None)
        if link is not None:
            self._linger(link)

    def drain(self, timeout_s: float, tell: Callable[[Peer], object] = lambda peer: None) -> None:
        """Close every link politely within `timeout_s`, then `shut`. `tell` says last words to those who still join."""
        # a peer may be busy, with last words behind what it has not read
        self._linger_s = max(self._linger_s, timeout_s)
        for peer in list(self._links):
            self.close(peer)
        deadline_s = time.monotonic() + timeout_s
        while self._passing and time.monotonic() < deadline_s:
            for event in self.poll(0.05):
                if isinstance(event, Joined):
                    tell(event.peer)
                    self.close(event.peer)
        self.shut()

    def shut(self) -> None:
        """Close everything at once. Safe to call twice."""
        for link in list(self._watched):
            self._drop(link)
        self._selector.close()
        self._links.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _linger(self, link: Link) -> None:
        """Send what is queued, then close; cut off when none of it has left for `_linger_s`."""
        link.closing = True
        self._held.discard(link)
        self._passing[link] = time.monotonic() + self._linger_s
        self._flush(link)

    def _half_close(self, link: Link) -> None:
        # Closing at once with unread bytes would make the kernel throw away our last words.
        try:
            link.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(link)

    def _break(self, link: Link, reason: str, refused: bool = False) -> None:
        """A link broke; `refused`: the other side turned this process away. Of a lingering one nobody hears."""
        self._drop(link)
        if link.closing:
            return
        if link.wanted is not None:
            self._events.append(Left(link.wanted, reason, refused))
        elif link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._events.append(Left(link.peer, reason))
        else:
            self._rejected.add(reason)

    def _drop(self, link: Link) -> None:
        self._passing.pop(link, None)
        self._held.discard(link)
        mask = self._watched.pop(link, None)
        if mask:
            self._selector.unregister(link.sock)
        if mask is not None:
            sent, received = self._gone_bytes
            self._gone_bytes = (sent + link.bytes_sent, received + link.bytes_received)
        link.sock.close()


class WakeableHub(Hub):
    """A hub of one thread whose poll another thread can end early."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector.register(self._ear, READ, self._ear)

    def wake(self) -> None:
        """Let a running or the next `poll` return at once. May be called from any thread."""
        with contextlib.suppress(OSError):  # rung often enough already, or closed
            self._bell.send(b"!")

    def poll(self, timeout_s: float) -> list[Event]:
        events = super().poll(timeout_s)
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        return events

    def shut(self) -> None:
        super().shut()
        self._bell.close()
        self._ear.close()
