"""Frames to and from peers over MPI, for fabrics where TCP is slow.

Each frame is a message with its header and, if there is one, a message with its payload. An address is ("mpi", rank in
COMM_WORLD).

MPI's ranks were all started by one mpirun, so there are no strangers and no proof of a secret; layout and incarnation
are checked all the same. A rank that died (see `mpi_world`) cannot come back into the same mpirun.
"""

import time
from collections.abc import Callable

from param_servers.errors import Refused
from param_servers.wire.events import Event, Joined, Left, Message, Rejected
from param_servers.wire.frames import Frame, ReceiveInto, place_for_payload, read_header
from param_servers.wire.handshake import (
    HELLO_BYTES,
    VERDICT_BYTES,
    Hello,
    Peer,
    Role,
    check_verdict,
    pack_hello,
    pack_verdict,
    unpack_hello,
)
from param_servers.wire.messages import HEADER_BYTES, Header, Kind
from param_servers.wire.mpi_world import MpiWorld

SPIN_S = 0.002
"""A poll that has to wait longer sleeps between probes."""
_NAP_S = 0.0002
_BYE = b"D3BY"


class MpiHub:
    """See `Hub`; the arguments are those of `TcpHub`, of which `secret`, `shard` and the timeout have no use here."""

    def __init__(
        self,
        secret: bytes,
        receive_into: ReceiveInto,
        *,
        shard: int = 0,
        admit: Callable[[Hello], str] = lambda hello: "",
        silence_timeout_s: float = 60.0,
    ) -> None:
        # The longest message but a payload, of which the header says how long it is, is a verdict.
        self._world = MpiWorld(VERDICT_BYTES, self._heard, self._filled, self._broken)
        self._receive_into, self._admit = receive_into, admit
        self._peers: dict[int, Peer] = {}
        self._ranks: dict[Peer, int] = {}
        self._dialled: dict[int, Hello] = {}
        """By rank: whom we are calling. MPI keeps the call until the other side looks, so nobody calls twice."""
        self._headers: dict[int, Header] = {}
        """By rank: the header whose payload comes next."""
        self._events: list[Event] = []

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """See `Hub`."""
        return self._world.bytes_sent, self._world.bytes_received

    def listen(self, host: str, port: int = 0, window_bytes: int | None = None) -> tuple[str, int]:
        """See `Hub`. The address of this rank; MPI chooses where it listens."""
        return "mpi", self._world.rank

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        """See `Hub`."""
        rank = address[1]
        self._dialled[rank] = hello
        if address[0] != "mpi" or not 0 <= rank < self._world.size:
            self._lost(rank, f"{address[0]}:{rank} is no rank of this mpirun")
        elif rank in self._world.dead:
            self._lost(rank, f"rank {rank} is dead")
        else:
            self._world.send(rank, pack_hello(hello, bytes(32)))

    def connected(self, peer: Peer) -> bool:
        """See `Hub`."""
        return peer in self._ranks

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> Frame | None:
        """See `Hub`."""
        rank = self._ranks.get(peer)
        if rank is None:
            return None
        frame = Frame(header, payload)
        self._world.send(rank, frame.header)
        if len(frame.payload) and rank in self._peers:
            self._world.send(rank, frame.payload)
        return frame

    def stream(self, peer: Peer, frame: Frame) -> bool:
        """Never: an MPI message has its whole content when it is sent."""
        return False

    def grown(self, peer: Peer) -> None:
        """Nothing to do: see `stream`."""

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        """Never: MPI shows a message when it is complete."""
        return None

    def cancel(self, peer: Peer, kind: Kind) -> None:
        """Nothing to do: what was sent is with MPI."""

    def flush(self) -> None:
        """Nothing to do: `send` sends."""

    def close(self, peer: Peer) -> None:
        """See `Hub`."""
        rank = self._ranks.pop(peer, None)
        if rank is not None:
            self._peers.pop(rank, None)
            self._world.send(rank, _BYE)

    def poll(self, timeout_s: float, until: Peer | None = None) -> list[Event]:
        """See `Hub`."""
        start_s = time.monotonic()
        while True:
            self._world.progress()
            waited_s = time.monotonic() - start_s
            if self._events or waited_s >= timeout_s:
                events, self._events = self._events, []
                return events
            time.sleep(0 if waited_s < SPIN_S else _NAP_S)

    def drain(self, timeout_s: float) -> None:
        """See `Hub`."""
        for peer in list(self._ranks):
            self.close(peer)
        deadline_s = time.monotonic() + timeout_s
        while self._world.sending and time.monotonic() < deadline_s:
            self._world.progress()
            time.sleep(_NAP_S)
        self.shut()

    def shut(self) -> None:
        """See `Hub`."""
        self._world.shut()
        for state in (self._peers, self._ranks, self._dialled, self._headers):
            state.clear()

    # -- what arrives --------------------------------------------------------------------------------------------

    def _heard(self, rank: int, data: bytearray) -> None:
        """A message that is no payload: small, and of a kind that we know."""
        if len(data) == HEADER_BYTES and rank in self._peers:
            self._header(rank, data)
        elif len(data) == HELLO_BYTES and rank not in self._dialled:
            self._hello(rank, unpack_hello(bytes(data)))
        elif len(data) == VERDICT_BYTES and rank in self._dialled:
            self._verdict(rank, data)
        elif data == _BYE:
            self._lost(rank, "it left")

    def _header(self, rank: int, data: bytearray) -> None:
        peer = self._peers[rank]
        header = read_header(peer, data)
        if header.length == 0:
            self._events.append(Message(peer, header, memoryview(b"")))
            return
        self._world.receive_next_into(rank, place_for_payload(peer, header, self._receive_into))
        self._headers[rank] = header

    def _filled(self, rank: int, payload: memoryview) -> None:
        header, peer = self._headers.pop(rank), self._peers.get(rank)
        if peer is not None:
            self._events.append(Message(peer, header, payload))

    # -- who is there --------------------------------------------------------------------------------------------

    def _hello(self, rank: int, hello: Hello) -> None:
        refusal = self._admit(hello)
        self._world.send(rank, pack_verdict(refusal))
        if refusal:
            self._events.append(Rejected(f"{hello.peer} was turned away: {refusal}"))
        elif rank not in self._world.dead:  # or nobody would ever tell that it Left
            self._join(rank, hello.peer, hello)

    def _verdict(self, rank: int, data: bytearray) -> None:
        try:
            check_verdict(data)
        except Refused as refused:
            self._lost(rank, str(refused), refused=True)
            return
        hello = self._dialled.pop(rank)
        self._join(rank, Peer(Role.SERVER, hello.shard), hello)

    def _join(self, rank: int, peer: Peer, hello: Hello) -> None:
        for before in {rank, self._ranks.get(peer, rank)} & set(self._peers):
            self._lost(before, "it connected again")
        self._peers[rank], self._ranks[peer] = peer, rank
        self._events.append(Joined(peer, hello))

    def _broken(self, rank: int, reason: str) -> None:
        """The link is lost; a rank that lives is told so, and may connect again."""
        known = rank in self._peers or rank in self._dialled
        self._lost(rank, reason)
        if known and rank not in self._world.dead:
            self._world.send(rank, _BYE)

    def _lost(self, rank: int, reason: str, refused: bool = False) -> None:
        self._world.forget(rank)
        self._headers.pop(rank, None)
        dialled, peer = self._dialled.pop(rank, None), self._peers.pop(rank, None)
        if dialled is not None:
            self._events.append(Left(Peer(Role.SERVER, dialled.shard), reason, refused))
        elif peer is not None:
            del self._ranks[peer]
            self._events.append(Left(peer, reason))
