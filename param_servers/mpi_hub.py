"""The links of one process over MPI, for fabrics where TCP is slow.

Each frame is a message with its header and, if there is one, a message with its payload. Both are found by one
any-source matched probe, so their sizes are known and checked before memory is taken; messages of one rank arrive in
the order in which they were sent. An address is ("mpi", rank in COMM_WORLD).

MPI's ranks were all started by one mpirun, so there are no strangers and no proof of a secret; layout and incarnation
are checked all the same. Under `mpirun --with-ft ulfm` the death of a rank is an event (Left), and the others go on;
without it mpirun ends all ranks. A rank that died cannot come back into the same mpirun.
"""

import atexit
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from param_servers.errors import BadMessage, Refused
from param_servers.events import Event, Joined, Left, Message, Rejected
from param_servers.frames import Frame, ReceiveInto, place_for_payload, read_header
from param_servers.handshake import (
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
from param_servers.messages import HEADER_BYTES, Header, Kind

TAG = 20017
SPIN_S = 0.002
"""A poll that has to wait longer sleeps between probes."""
_NAP_S = 0.0002
_LOOK_FOR_DEAD_S = 0.05
FINALIZE_TIMEOUT_S = 45
"""Longest wait for MPI's own end, where a rank has died."""
_MOST_MATCHED = 256
"""Messages taken in one poll, so that sends have their turn."""
_BYE = b"D3BY"
_unfinished: list[tuple[MPI.Request, Any]] = []
"""Of hubs that are shut and of ranks that are lost: MPI may still touch these buffers."""


class _Arriving(NamedTuple):
    """A payload on its way."""

    header: Header
    target: memoryview
    request: MPI.Request | None
    """None: its message has not come yet."""


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
        self._comm = MPI.COMM_WORLD
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._receive_into, self._admit = receive_into, admit
        self._peers: dict[int, Peer] = {}
        self._ranks: dict[Peer, int] = {}
        self._dialled: dict[int, Hello] = {}
        """By rank: whom we are calling. MPI keeps the call until the other side looks, so nobody calls twice."""
        self._matched: dict[int, deque[tuple[MPI.Message, int]]] = {}
        self._arriving: dict[int, _Arriving] = {}
        self._sends: list[tuple[MPI.Request, int, Any]] = []
        self._events: list[Event] = []
        self._dead: set[int] = set()
        self._looked_s = 0.0
        self._sent = self._received = 0

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """See `Hub`."""
        return self._sent, self._received

    def listen(self, host: str, port: int = 0, buffer_bytes: tuple[int, int] | None = None) -> tuple[str, int]:
        """See `Hub`. The address of this rank; MPI chooses where it listens."""
        return "mpi", int(self._comm.Get_rank())

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        """See `Hub`."""
        rank = address[1]
        self._dialled[rank] = hello
        if address[0] != "mpi" or not 0 <= rank < self._comm.Get_size():
            self._lost(rank, f"{address[0]}:{rank} is no rank of this mpirun")
        elif rank in self._dead:
            self._lost(rank, f"rank {rank} is dead")
        else:
            self._post(rank, pack_hello(hello, bytes(32)))

    def connected(self, peer: Peer) -> bool:
        """See `Hub`."""
        return peer in self._ranks

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> Frame | None:
        """See `Hub`."""
        rank = self._ranks.get(peer)
        if rank is None:
            return None
        frame = Frame(header, payload)
        self._post(rank, frame.header)
        if len(frame.payload) and rank in self._peers:
            self._post(rank, frame.payload)
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
            self._post(rank, _BYE)

    def poll(self, timeout_s: float) -> list[Event]:
        """See `Hub`."""
        start_s = time.monotonic()
        while True:
            self._progress()
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
        while self._sends and time.monotonic() < deadline_s:
            self._progress()
            time.sleep(_NAP_S)
        self.shut()

    def shut(self) -> None:
        """See `Hub`."""
        _unfinished.extend((request, buffer) for request, _, buffer in self._sends)
        for arriving in self._arriving.values():
            if arriving.request is not None:
                _unfinished.append((arriving.request, arriving.target))
        for state in (self._sends, self._arriving, self._peers, self._ranks, self._dialled, self._matched):
            state.clear()

    # -- moving ----------------------------------------------------------------------------------------------------

    def _post(self, rank: int, data: Any) -> None:
        try:
            request = self._comm.Isend([data, MPI.BYTE], rank, TAG)
        except MPI.Exception as error:
            self._failed(rank, error)
            return
        self._sent += len(data)
        self._sends.append((request, rank, data))

    def _progress(self) -> None:
        self._sends = [entry for entry in self._sends if not self._done(entry[0], entry[1])]
        for rank in list(self._arriving):
            self._receive_rest(rank)
        for _ in range(_MOST_MATCHED):
            status = MPI.Status()
            try:
                message = self._comm.Improbe(MPI.ANY_SOURCE, TAG, status)
            except MPI.Exception:
                self._look_for_the_dead()  # a pending any-source call raises when anybody has died
                break
            if message is None:
                break
            rank = status.Get_source()
            self._matched.setdefault(rank, deque()).append((message, status.Get_count(MPI.BYTE)))
            self._take(rank)
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_FOR_DEAD_S:
            self._looked_s = now_s
            self._look_for_the_dead()

    def _done(self, request: MPI.Request, rank: int) -> bool:
        try:
            return bool(request.Test())
        except MPI.Exception as error:
            self._failed(rank, error)
            return True

    def _take(self, rank: int) -> None:
        """Handle the messages of one rank, in order, as far as they are here."""
        waiting = self._matched[rank]
        while waiting:
            arriving = self._arriving.get(rank)
            if arriving is not None and arriving.request is not None:
                return
            message, count = waiting.popleft()
            try:
                if arriving is not None:
                    if count != len(arriving.target):
                        raise BadMessage(f"a payload of {count} bytes instead of {len(arriving.target)}")
                    request = message.Irecv([arriving.target, MPI.BYTE])
                    self._arriving[rank] = arriving._replace(request=request)
                    self._receive_rest(rank)
                else:
                    self._control(rank, message, count)
            except BadMessage as error:
                self._lost(rank, str(error))
            except MPI.Exception as error:
                self._failed(rank, error)

    def _receive_rest(self, rank: int) -> None:
        arriving = self._arriving[rank]
        if arriving.request is None or not self._done(arriving.request, rank):
            return
        if self._arriving.pop(rank, None) is None:
            return  # it died meanwhile
        self._received += len(arriving.target)
        if rank in self._peers:
            self._events.append(Message(self._peers[rank], arriving.header, arriving.target))
        if self._matched.get(rank):
            self._take(rank)

    def _control(self, rank: int, message: MPI.Message, count: int) -> None:
        """A message that is no payload: small, and of a kind that we know."""
        if count > VERDICT_BYTES:
            raise BadMessage(f"an unexpected message of {count} bytes")
        data = bytearray(count)
        message.Recv([data, MPI.BYTE])
        self._received += count
        if count == HEADER_BYTES and rank in self._peers:
            self._header(rank, data)
        elif count == HELLO_BYTES and rank not in self._dialled:
            self._hello(rank, unpack_hello(bytes(data)))
        elif count == VERDICT_BYTES and rank in self._dialled:
            self._verdict(rank, data)
        elif bytes(data) == _BYE:
            self._lost(rank, "it left")

    def _header(self, rank: int, data: bytearray) -> None:
        peer = self._peers[rank]
        header = read_header(peer, data)
        if header.length == 0:
            self._events.append(Message(peer, header, memoryview(b"")))
            return
        target = place_for_payload(peer, header, self._receive_into)
        self._arriving[rank] = _Arriving(header, target, None)

    # -- who is there ----------------------------------------------------------------------------------------------

    def _hello(self, rank: int, hello: Hello) -> None:
        refusal = self._admit(hello)
        self._post(rank, pack_verdict(refusal))
        if refusal:
            self._events.append(Rejected(f"{hello.peer} was turned away: {refusal}"))
        else:
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

    def _failed(self, rank: int, error: MPI.Exception) -> None:
        self._look_for_the_dead()
        if rank not in self._dead:
            self._lost(rank, str(error).splitlines()[0])

    def _look_for_the_dead(self) -> None:
        """Under ULFM: which ranks have died since we last looked; acknowledge them, so that probes go on."""
        group = self._comm.Get_failed()
        if group.Get_size() <= len(self._dead):
            group.Free()
            return
        world = self._comm.Get_group()
        failed = {int(rank) for rank in group.Translate_ranks(list(range(group.Get_size())), world)}
        self._comm.Ack_failed(group.Get_size())
        world.Free()
        group.Free()
        if not self._dead:
            atexit.register(_bound_the_end)
        for rank in failed - self._dead:
            self._dead.add(rank)
            self._lost(rank, "its process died")

    def _lost(self, rank: int, reason: str, refused: bool = False) -> None:
        dialled, peer = self._dialled.pop(rank, None), self._peers.pop(rank, None)
        arriving = self._arriving.pop(rank, None)
        if arriving is not None and arriving.request is not None:
            _unfinished.append((arriving.request, arriving.target))
        if dialled is not None:
            self._events.append(Left(Peer(Role.SERVER, dialled.shard), reason, refused))
        elif peer is not None:
            del self._ranks[peer]
            self._events.append(Left(peer, reason))


def _bound_the_end() -> None:
    """MPI_Finalize, the last thing that a process does, takes seconds after a death and in 1 of 20 runs never ended."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(FINALIZE_TIMEOUT_S)
