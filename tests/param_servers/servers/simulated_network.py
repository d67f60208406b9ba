"""A network and a clock that a seeded random number generator drives, in place of sockets and time.

Frames travel in order on each link and in pieces; links break with frames in flight; processes die and freeze.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from param_servers.errors import BadMessage
from param_servers.wire.frames import Event, Frame, Joined, Left, Message
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.messages import HEADER_BYTES, Code, Header, Kind, unpack_header


@dataclass
class Wire:
    """One direction of a link: frames on their way to `reader`."""

    reader: SimHub
    writer_peer: Peer
    frames: deque[Frame] = field(default_factory=deque)
    header: Header | None = None
    target: memoryview | None = None
    have: int = 0
    closed: str = ""
    """Why the link is gone; told to the reader after the frames that still arrive."""


class SimHub:
    """The part of `Hub` that the cores use."""

    bytes_moved = (0, 0)

    def __init__(self, network: SimNetwork, me: Peer) -> None:
        self.network, self.me = network, me
        self.receive_into: Callable[[Peer, Header], memoryview] = lambda peer, header: memoryview(b"")
        self.handle: Callable[[Event], None] = lambda event: None
        self.admit: Callable[[Hello], str] = lambda hello: "it does not listen"
        self.outgoing: dict[Peer, Wire] = {}
        self.incoming: dict[Peer, Wire] = {}
        self.alive, self.frozen = True, False
        self.held: set[Peer] = set()

    def connected(self, peer: Peer) -> bool:
        return peer in self.outgoing

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> Frame | None:
        return self._queue(peer, Frame(header, payload))

    def stream(self, peer: Peer, frame: Frame) -> bool:
        return self._queue(peer, frame) is not None

    def _queue(self, peer: Peer, frame: Frame) -> Frame | None:
        wire = self.outgoing.get(peer)
        if wire is None:
            return None
        if not wire.closed:  # else it is lost, and the writer will learn it
            wire.frames.append(frame)
        return frame

    def allow(self, peer: Peer, frame: Frame, size: int) -> None:
        frame.available = max(frame.available, size)

    def flush(self) -> None:
        pass

    def hold(self, peers: Collection[Peer]) -> None:
        self.held = set(peers)

    def cancel(self, peer: Peer, kind: Kind) -> None:
        wire = self.outgoing.get(peer)
        if wire is not None:
            kept = [frame for i, frame in enumerate(wire.frames) if frame.kind != kind or (i == 0 and wire.header)]
            wire.frames = deque(kept)

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        wire = self.incoming.get(peer)
        return (wire.header, wire.have) if wire is not None and wire.header is not None else None

    def close(self, peer: Peer) -> None:
        self.network.cut(self, peer, "closed")

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        self.network.dials.append((self, address, hello))


class SimNetwork:
    """All hubs, their links, and what may happen next."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.duplicates = rng.choice([0.0, 0.2])
        self.now_s = 0.0
        self.hubs: dict[Peer, SimHub] = {}
        self.addresses: dict[int, tuple[str, int]] = {}
        self.dials: list[tuple[SimHub, tuple[str, int], Hello]] = []
        self.wires: list[Wire] = []
        self.listening: dict[tuple[str, int], SimHub] = {}

    def resolve(self, shard: int) -> tuple[str, int] | None:
        return self.addresses.get(shard)

    # -- links ---------------------------------------------------------------------------------------------------

    def shake_hands(self, index: int) -> None:
        """One dial succeeds or fails."""
        dialer, address, hello = self.dials.pop(index)
        if not dialer.alive:
            return
        server = Peer(Role.SERVER, hello.shard)
        listener = self.listening.get(address)
        if listener is None or not listener.alive:
            dialer.handle(Left(server, "connection refused"))
            return
        if listener.frozen or dialer.frozen:
            self.dials.append((dialer, address, hello))
            return
        refusal = listener.admit(hello)
        if refusal:
            dialer.handle(Left(server, refusal, True))
            return
        if hello.peer in listener.outgoing:
            words = memoryview(b"another process connected")
            listener.send(hello.peer, Header(Kind.EXPELLED, listener.me.rank, code=Code.FAILED), words)
            self.cut(listener, hello.peer, "closed")
            listener.handle(Left(hello.peer, "it connected again"))
        there, back = Wire(listener, hello.peer), Wire(dialer, server)
        self.wires += [there, back]
        dialer.outgoing[server], dialer.incoming[server] = there, back
        listener.outgoing[hello.peer], listener.incoming[hello.peer] = back, there
        listener.handle(Joined(hello.peer, hello))
        if server in dialer.outgoing:
            dialer.handle(Joined(server, hello))

    def cut(self, hub: SimHub, peer: Peer, reason: str, lossy: bool = False) -> None:
        """`hub` lets go of its link: the other side learns it after what is in flight, some of which may be lost."""
        out, back = hub.outgoing.pop(peer, None), hub.incoming.pop(peer, None)
        if back is not None and back in self.wires:
            self.wires.remove(back)
        if out is not None:
            while lossy and out.frames and self.rng.random() < 0.5:
                out.frames.pop()
                if not out.frames:
                    out.header = None
            out.closed = reason

    def break_link(self, hub: SimHub, peer: Peer) -> None:
        """The link breaks in the middle: both sides lose what is in flight and learn it at their own time."""
        for wire in (hub.outgoing.get(peer), hub.incoming.get(peer)):
            if wire is not None:
                while wire.frames and self.rng.random() < 0.7:
                    wire.frames.pop()
                    wire.header = wire.header if wire.frames else None
                wire.closed = "connection reset"

    def kill(self, hub: SimHub) -> None:
        hub.alive = False
        for peer in list(hub.outgoing):
            self.cut(hub, peer, "connection reset", lossy=True)
        for wire in [wire for wire in self.wires if wire.reader is hub]:
            self.wires.remove(wire)

    # -- moving bytes --------------------------------------------------------------------------------------------

    def movable(self) -> list[Wire]:
        """Wires on which something can arrive now."""
        return [
            wire
            for wire in self.wires
            if wire.reader.alive
            and not wire.reader.frozen
            and wire.writer_peer not in wire.reader.held
            and (wire.closed or self._ready(wire))
        ]

    def _ready(self, wire: Wire) -> bool:
        if not wire.frames:
            return False
        frame = wire.frames[0]
        return wire.header is None or wire.have < frame.available or frame.available == len(frame.payload)

    def move(self, wire: Wire) -> None:
        """A piece of a frame arrives, or several frames before the reader looks; or the news that the link is gone."""
        messages: list[Message] = []
        while wire.frames and self._ready(wire) and (not messages or self.rng.random() < 0.5):
            if not self._read(wire, messages):
                break
        if not messages and (not wire.frames or (wire.closed and not self._ready(wire))):
            self._gone(wire)
        for message in messages:
            if wire.reader.alive:
                wire.reader.handle(message)

    def _read(self, wire: Wire, messages: list[Message]) -> bool:
        """Read on in the first frame; whether it is complete."""
        frame = wire.frames[0]
        if wire.header is None:
            wire.header, wire.have = unpack_header(frame.header[:HEADER_BYTES]), 0
            if wire.header.length:
                try:
                    wire.target = wire.reader.receive_into(wire.writer_peer, wire.header)
                except BadMessage as error:
                    wire.closed = str(error)
                    wire.frames.clear()
                    return False
        end = frame.available
        if wire.target is not None:
            if self.rng.random() < 0.3:
                end = self.rng.randint(wire.have, end)
            wire.target[wire.have : end] = frame.payload[wire.have : end]
            wire.have = end
            frame.sent = HEADER_BYTES + end
            if end < len(frame.payload):
                return False
        header, payload = wire.header, wire.target if wire.target is not None else memoryview(b"")
        wire.frames.popleft()
        wire.header = wire.target = None
        if header.kind == Kind.GRADIENT and self.rng.random() < self.duplicates:
            wire.frames.append(frame)
        messages.append(Message(wire.writer_peer, header, payload))
        return True

    def _gone(self, wire: Wire) -> None:
        self.wires.remove(wire)
        hub, peer = wire.reader, wire.writer_peer
        if hub.incoming.get(peer) is wire:
            del hub.incoming[peer]
            back = hub.outgoing.pop(peer)
            back.closed = back.closed or wire.closed
            hub.handle(Left(peer, wire.closed))
