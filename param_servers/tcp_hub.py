"""The links of one process over TCP."""

import errno
import os
import socket
import time
from collections.abc import Callable

from param_servers.errors import BadMessage, Refused
from param_servers.events import Event, Joined, Left, Message, Rejected
from param_servers.frames import Frame, ReceiveInto
from param_servers.handshake import Dialer, Hello, Listener, Peer
from param_servers.link_selector import READ, WRITE, LinkSelector
from param_servers.links import WAKE_BYTES, Link, tune
from param_servers.messages import Code, Header, Kind

HANDSHAKE_TIMEOUT_S = 10.0
LINGER_S = 2.0
MOST_STRANGERS = 512
"""Connections whose handshake is not done; beyond this the newest are closed."""


class TcpHub:
    """See `Hub`.

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
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self._secret, self._receive_into, self._shard, self._admit = secret, receive_into, shard, admit
        self._silence_timeout_s, self._handshake_timeout_s = silence_timeout_s, handshake_timeout_s
        self._selector = LinkSelector()
        self._listener: socket.socket | None = None
        self._links: dict[Peer, Link] = {}
        self._leaving: dict[Link, float] = {}
        """Links in their handshake or their last words, with the time when patience ends."""
        self._wanted: dict[Link, Peer] = {}
        self._dirty: set[Link] = set()
        self._events: list[Event] = []
        self._wake_bytes = WAKE_BYTES

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """See `Hub`."""
        return self._selector.bytes_moved

    def listen(self, host: str, port: int = 0, buffer_bytes: tuple[int, int] | None = None) -> tuple[str, int]:
        """See `Hub`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=512)
        self._listener.setblocking(False)
        if buffer_bytes is not None:
            self._wake_bytes = 1  # what arrives is passed on at once
        if buffer_bytes is not None and not host.startswith(("127.", "::1", "localhost")):
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes[0])
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes[1])
        self._selector.listen(self._listener)
        address = self._listener.getsockname()
        return str(address[0]), int(address[1])

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        """See `Hub`."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        dialer = Dialer(self._secret, hello)
        sock = socket.socket(family, socket.SOCK_STREAM)
        tune(sock, self._silence_timeout_s)
        link = Link(sock, dialer, self._receive_into)
        self._wanted[link] = dialer.peer
        try:
            sock.connect(address)
        except OSError as error:
            if error.errno != errno.EINPROGRESS:
                del self._wanted[link]
                sock.close()
                why = f"cannot connect to {address[0]}:{address[1]}: {_reason(error)}"
                self._events.append(Left(dialer.peer, why))
                return
        self._leaving[link] = time.monotonic() + self._handshake_timeout_s
        self._selector.watch(link, READ | WRITE)

    def connected(self, peer: Peer) -> bool:
        """See `Hub`."""
        return peer in self._links

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> Frame | None:
        """See `Hub`."""
        link = self._links.get(peer)
        if link is None:
            return None
        frame = Frame(header, payload)
        link.send(frame)
        self._dirty.add(link)
        return frame

    def stream(self, peer: Peer, frame: Frame) -> bool:
        """See `Hub`."""
        link = self._links.get(peer)
        if link is None:
            return False
        link.send(frame)
        self._dirty.add(link)
        return True

    def grown(self, peer: Peer) -> None:
        """See `Hub`."""
        link = self._links.get(peer)
        if link is not None:
            self._dirty.add(link)

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        """See `Hub`."""
        link = self._links.get(peer)
        return link.receiving if link is not None else None

    def expect(self, peer: Peer, least_bytes: int) -> None:
        """Nothing shorter than this comes from a peer: do not wake up for less (where the kernel can do that)."""
        link = self._links.get(peer)
        if link is not None:
            link.least_frame_bytes = least_bytes
            link.wake_for_enough()

    def cancel(self, peer: Peer, kind: Kind) -> None:
        """See `Hub`."""
        link = self._links.get(peer)
        if link is not None:
            link.cancel(kind)

    def close(self, peer: Peer) -> None:
        """See `Hub`. A peer that does not read is cut off after LINGER_S."""
        link = self._links.pop(peer, None)
        if link is not None:
            self._linger(link)

    def poll(self, timeout_s: float) -> list[Event]:
        """See `Hub`."""
        self.flush()
        if self._events:
            timeout_s = 0.0
        elif self._leaving:
            timeout_s = min(timeout_s, max(0.0, min(self._leaving.values()) - time.monotonic()))
        for link, mask in self._selector.select(timeout_s):
            if link is None:
                self._accept()
                continue
            if mask & WRITE:
                self._flush(link)
            if mask & READ and link in self._selector:
                self._read(link)
        self._cut_off_the_slow()
        events, self._events = self._events, []
        return events

    def flush(self) -> None:
        """See `Hub`."""
        dirty, self._dirty = self._dirty, set()
        for link in dirty:
            self._flush(link)

    def drain(self, timeout_s: float) -> None:
        """See `Hub`."""
        for peer in list(self._links):
            self.close(peer)
        deadline = time.monotonic() + timeout_s
        while self._leaving and time.monotonic() < deadline:
            self.poll(0.05)
        self.shut()

    def shut(self) -> None:
        """See `Hub`."""
        for link in self._selector:
            self._drop(link)
        self._links.clear()
        self._leaving.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._selector.close()

    # -- one link ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        if len(self._leaving) >= MOST_STRANGERS:
            sock.close()
            return
        tune(sock, self._silence_timeout_s)
        link = Link(sock, Listener(self._secret, self._shard, self._admit), self._receive_into)
        link.wake_bytes = self._wake_bytes
        self._leaving[link] = time.monotonic() + self._handshake_timeout_s
        self._selector.watch(link, READ)

    def _flush(self, link: Link) -> None:
        if link not in self._selector:
            return
        try:
            link.flush()
        except OSError as error:
            self._lost(link, _reason(error))
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
                self._events.append(Message(link.peer, header, payload))
            if was_stranger:
                self._flush(link)
                if link.peer is not None and link in self._selector:
                    self._welcome(link, link.peer)
        except BlockingIOError:
            return
        except (BadMessage, Refused, OSError) as error:
            self._lost(link, _reason(error), refused=isinstance(error, Refused))

    def _welcome(self, link: Link, peer: Peer) -> None:
        hello = link.hello
        assert hello is not None
        if link.closing:
            self._events.append(Rejected(f"{peer} was turned away: {link.refusal}"))
            self._linger(link)
            return
        del self._leaving[link]
        self._wanted.pop(link, None)
        before = self._links.get(peer)
        self._links[peer] = link  # before its predecessor's last words, which may find that one broken
        if before is not None:
            self._events.append(Left(peer, "it connected again"))
            words = f"another process connected as {peer}, incarnation {hello.incarnation}"
            header = Header(Kind.EXPELLED, sender=self._shard, code=Code.FAILED)
            before.send(Frame(header, memoryview(words.encode())))
            self._linger(before)
        self._events.append(Joined(peer, hello))

    def _linger(self, link: Link) -> None:
        link.closing = True
        self._leaving[link] = time.monotonic() + LINGER_S
        self._flush(link)

    def _half_close(self, link: Link) -> None:
        # Closing at once with unread bytes would make the kernel throw away our last words.
        try:
            link.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(link)

    def _cut_off_the_slow(self) -> None:
        if not self._leaving:
            return
        now = time.monotonic()
        for link, deadline in list(self._leaving.items()):
            if now >= deadline:
                if link.closing:
                    self._drop(link)
                else:
                    self._lost(link, f"the handshake took more than {self._handshake_timeout_s:g} s")

    def _lost(self, link: Link, reason: str, refused: bool = False) -> None:
        wanted = self._wanted.get(link)
        peer = link.peer
        stranger = link in self._leaving
        self._drop(link)
        if wanted is not None:
            self._events.append(Left(wanted, reason, refused))
        elif peer is not None and self._links.get(peer) is link:
            del self._links[peer]
            self._events.append(Left(peer, reason))
        elif stranger and not link.closing:
            self._events.append(Rejected(reason))

    def _drop(self, link: Link) -> None:
        self._leaving.pop(link, None)
        self._wanted.pop(link, None)
        self._selector.drop(link)


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):  # its numbers are not the kernel's
        return error.strerror or "no such host"
    if isinstance(error, OSError) and error.errno:
        return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
    return str(error) or type(error).__name__
