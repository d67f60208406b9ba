"""All links of one process behind one `poll`, over TCP: the same loop in servers and in workers, without threads.

    hub.send(peer, header, payload)         queue; never blocks
    for event in hub.poll(timeout_s): ...   Joined, Left(reason), Message or Rejected

Which link is whose, and who may have one, is known here; the simulation of the tests has a hub of its own.
"""

import contextlib
import math
import socket
import time
from collections.abc import Callable
from typing import Any

from param_servers.timeouts import HANDSHAKE_S
from param_servers.wire.frames import Event, Frame, Joined, Left, ReceiveInto, Rejected
from param_servers.wire.handshake import Dialer, Hello, Listener, Peer, Role
from param_servers.wire.link_loop import LinkLoop
from param_servers.wire.links import WAKE_BYTES, Link
from param_servers.wire.messages import Code, Header, Kind
from param_servers.wire.tcp_sockets import accept, begin_to_connect, open_listener, reason_of, send_first

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
        self._reason, self._count, self._next_s = "", 0, -math.inf

    def add(self, reason: str) -> None:
        """One more."""
        self._reason, self._count = reason, self._count + 1

    def due(self, now_s: float) -> list[Rejected]:
        """What is to be told now."""
        if not self._count or now_s < self._next_s:
            return []
        reason = self._reason if self._count == 1 else f"{self._reason} (the last of {self._count} turned away)"
        told, self._count, self._next_s = Rejected(reason, self._count), 0, now_s + self.EVERY_S
        return [told]


class Hub:
    """Links by peer.

    Args:
        secret: the run's secret, which every peer must prove to know.
        receive_into: see `frames.ReceiveInto`.
        shard, admit: for listening processes: own shard, and who may join ("" or one line why not).
        silence_timeout_s: a host that does not acknowledge bytes for this long is Left.
        handshake_timeout_s: a connection whose handshake takes longer is closed.
    """

    def __init__(
        self,
        secret: bytes,
        receive_into: ReceiveInto,
        *,
        shard: int = 0,
        admit: Callable[[Hello], str] = lambda hello: "",
        silence_timeout_s: float = 60.0,
        handshake_timeout_s: float = HANDSHAKE_S,
    ) -> None:
        self._secret, self._receive_into, self._shard, self._admit = secret, receive_into, shard, admit
        self._silence_timeout_s = silence_timeout_s
        self._loop = LinkLoop(handshake_timeout_s, self._accept, self._welcome, self._lost)
        self._listener: socket.socket | None = None
        self._links: dict[Peer, Link] = {}
        self._wanted: dict[Link, Peer] = {}
        """Whom the links are to reach that were dialled and have not Joined."""
        self._strangers: dict[Link, str] = {}
        """The hosts of those that were accepted and whose handshake is not over."""
        self._rejected, self._refused = Rejections(), Rejections()
        """Strangers, of which a flood shall not hide what peers are told."""
        self._wake_bytes = WAKE_BYTES

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links."""
        return self._loop.bytes_moved

    # -- frames --------------------------------------------------------------------------------------------------

    def connected(self, peer: Peer) -> bool:
        """Whether this peer has Joined and is not Left."""
        return peer in self._links

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> bool:
        """Queue a frame; False when the peer is not connected. The payload must not change until it is sent."""
        return self.stream(peer, Frame(header, payload))

    def stream(self, peer: Peer, frame: Frame) -> bool:
        """Queue a frame whose payload is still growing; call `grown` when `frame.available` has increased.

        False: the peer is not connected.
        """
        link = self._links.get(peer)
        if link is None:
            return False
        self._loop.send(link, frame)
        return True

    def grown(self, peer: Peer) -> None:
        """More of a streamed frame may be sent."""
        link = self._links.get(peer)
        if link is not None:
            self._loop.grown(link)

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        """Header and bytes so far of the payload that is arriving from this peer."""
        link = self._links.get(peer)
        return link.receiving if link is not None else None

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
        events = self._loop.poll(timeout_s)
        now_s = time.monotonic()
        return [*events, *self._rejected.due(now_s), *self._refused.due(now_s)]

    def flush(self) -> None:
        """Send what can be sent now of what was queued since the last poll.

        A link that took no more the last time is tried again by `poll`, when it does.
        """
        self._loop.flush()

    # -- links ---------------------------------------------------------------------------------------------------

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
        self._loop.listen(listener)
        address = listener.getsockname()
        return str(address[0]), int(address[1])

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        """Begin to connect; Joined or Left(server `hello.shard`) follows."""
        dialer = Dialer(self._secret, hello)
        try:
            sock = begin_to_connect(address, self._silence_timeout_s)
        except OSError as error:
            why = f"cannot connect to {address[0]}:{address[1]}: {reason_of(error)}"
            self._loop.events.append(Left(dialer.peer, why))
            return
        link = Link(sock, dialer, self._receive_into)
        self._wanted[link] = dialer.peer
        self._loop.begin(link, connecting=True)

    def close(self, peer: Peer) -> None:
        """Send what is queued, then close; no Left follows. A peer that does not read is cut off after
        `timeouts.LINGER_S`."""
        link = self._links.pop(peer, None)
        if link is not None:
            self._loop.linger(link)

    def drain(self, timeout_s: float) -> None:
        """Close every link politely within `timeout_s`, then `shut`."""
        for peer in list(self._links):
            self.close(peer)
        self._loop.let_pass(timeout_s)
        self.shut()

    def shut(self) -> None:
        """Close everything at once. Safe to call twice."""
        self._loop.shut()
        self._links.clear()
        self._wanted.clear()
        self._strangers.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    # -- what the loop asks and tells ----------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted = accept(self._listener, self._silence_timeout_s)
        except OSError as error:
            self._rejected.add(f"no connection can be accepted: {reason_of(error)}")
            self._loop.pause_listening(PAUSE_S)
            return
        if accepted is None:
            return
        sock, host = accepted
        waiting = sum(other == host for other in self._strangers.values())
        if waiting >= MOST_OF_A_HOST or self._loop.passing >= MOST_STRANGERS:
            self._rejected.add(
                f"{host} has {waiting} connections of {self._loop.passing} that have not said who they are"
            )
            sock.close()
            return
        link = Link(sock, Listener(self._secret, self._shard, self._admit), self._receive_into)
        link.wake_bytes = self._wake_bytes
        self._strangers[link] = host
        self._loop.begin(link)

    def _welcome(self, link: Link) -> None:
        peer, hello = link.peer, link.hello
        assert peer is not None and hello is not None
        self._strangers.pop(link, None)
        if link.closing:
            self._refused.add(f"{peer} was turned away: {link.refusal}")
            self._loop.linger(link)
            return
        self._loop.keep(link)
        self._wanted.pop(link, None)
        if hello.role is Role.SERVER:
            send_first(link.sock)
        before = self._links.get(peer)
        self._links[peer] = link  # first, so that a predecessor found broken now is not Left a second time
        if before is not None:
            self._loop.events.append(Left(peer, "it connected again"))
            words = f"another process connected as {peer}, incarnation {hello.incarnation}"
            header = Header(Kind.EXPELLED, sender=self._shard, code=Code.FAILED)
            before.send(Frame(header, memoryview(words.encode())))
            self._loop.linger(before)
        self._loop.events.append(Joined(peer, hello))

    def _lost(self, link: Link, reason: str, refused: bool) -> None:
        self._strangers.pop(link, None)
        wanted, peer = self._wanted.pop(link, None), link.peer
        if wanted is not None:
            self._loop.events.append(Left(wanted, reason, refused))
        elif peer is not None and self._links.get(peer) is link:
            del self._links[peer]
            self._loop.events.append(Left(peer, reason))
        else:
            self._rejected.add(reason)


class WakeableHub(Hub):
    """A hub of one thread whose poll another thread can end early."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._loop.wake_for(self._ear)

    def wake(self) -> None:
        """Let a running or the next `poll` return at once. May be called from any thread."""
        with contextlib.suppress(OSError):  # rung often enough already, or closed
            self._bell.send(b"!")

    def poll(self, timeout_s: float) -> list[Event]:
        """See `Hub.poll`."""
        events = super().poll(timeout_s)
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        return events

    def shut(self) -> None:
        """See `Hub.shut`."""
        super().shut()
        self._bell.close()
        self._ear.close()
