"""The ranks of one mpirun: messages of plain bytes between them, and which of them have died.

One any-source matched probe finds all messages, so that their sizes are known and checked before memory is taken;
messages of one rank arrive in the order in which they were sent. Under `mpirun --with-ft ulfm` the death of a rank is
told and the others go on; without it mpirun ends all ranks.
"""

import atexit
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from param_servers.errors import BadMessage

TAG = 20017
FINALIZE_TIMEOUT_S = 45
"""Longest wait for MPI's own end, where a rank has died."""
_LOOK_FOR_DEAD_S = 0.05
_MOST_MATCHED = 256
"""Messages taken in one `progress`, so that sends have their turn."""
_unfinished: list[tuple[MPI.Request, Any]] = []
"""Of worlds that are shut and of ranks that are lost: MPI may still touch these buffers."""


class MpiWorld:
    """All ranks of COMM_WORLD, this one among them. Nothing blocks, and everything below happens in `progress`.

    Args:
        most_bytes: of a message that was not announced by `receive_next_into`; who sends a longer one is lost.
        heard: called with (rank, message) for those; may raise BadMessage, and then that rank is lost.
        filled: called with (rank, place) when the message that was announced is there.
        lost: called with (rank, why) when it died, a transfer failed or it sent what it must not; also within `send`.
    """

    def __init__(
        self,
        most_bytes: int,
        heard: Callable[[int, bytearray], None],
        filled: Callable[[int, memoryview], None],
        lost: Callable[[int, str], None],
    ) -> None:
        self._comm = MPI.COMM_WORLD
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())
        self.dead: set[int] = set()
        self.bytes_sent = self.bytes_received = 0
        self._most_bytes, self._heard, self._filled, self._lost = most_bytes, heard, filled, lost
        self._sends: list[tuple[MPI.Request, int, Any]] = []
        self._matched: dict[int, deque[tuple[MPI.Message, int]]] = {}
        """By rank: messages that are here but not received, and their bytes."""
        self._places: dict[int, memoryview] = {}
        """By rank: where its next message goes."""
        self._receives: dict[int, tuple[MPI.Request, memoryview]] = {}
        """By rank: a message that is being received, and where it goes."""
        self._looked_s = 0.0

    @property
    def sending(self) -> bool:
        """Whether something is still on its way to another rank."""
        return bool(self._sends)

    def send(self, rank: int, data: Any) -> None:
        """Begin to send; `data` (bytes or a memoryview) must not change until it is sent."""
        try:
            request = self._comm.Isend([data, MPI.BYTE], rank, TAG)
        except MPI.Exception as error:
            self._failed(rank, error)
            return
        self.bytes_sent += len(data)
        self._sends.append((request, rank, data))

    def receive_next_into(self, rank: int, place: memoryview) -> None:
        """The next message of a rank goes there, and must have exactly its length; `filled` or `lost` follows."""
        self._places[rank] = place

    def forget(self, rank: int) -> None:
        """Nobody wants what is arriving from this rank."""
        self._places.pop(rank, None)
        receive = self._receives.pop(rank, None)
        if receive is not None:
            _unfinished.append(receive)

    def shut(self) -> None:
        """Forget everything at once. Safe to call twice."""
        _unfinished.extend((request, data) for request, _, data in self._sends)
        _unfinished.extend(self._receives.values())
        for state in (self._sends, self._receives, self._places, self._matched):
            state.clear()

    # -- moving --------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Move what can be moved now."""
        self._sends = [entry for entry in self._sends if not self._done(entry[0], entry[1])]
        for rank in list(self._receives):
            if self._finish(rank):
                self._take(rank)
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
        """Receive the messages of one rank, in order, as far as they are here."""
        waiting = self._matched[rank]
        while waiting and rank not in self._receives:
            message, count = waiting.popleft()
            place = self._places.pop(rank, None)
            try:
                if place is None:
                    self._receive_small(rank, message, count)
                elif count == len(place):
                    self._receives[rank] = (message.Irecv([place, MPI.BYTE]), place)
                    self._finish(rank)
                else:
                    raise BadMessage(f"a payload of {count} bytes instead of {len(place)}")
            except BadMessage as error:
                self._lost(rank, str(error))
            except MPI.Exception as error:
                self._failed(rank, error)

    def _receive_small(self, rank: int, message: MPI.Message, count: int) -> None:
        if count > self._most_bytes:
            raise BadMessage(f"an unexpected message of {count} bytes")
        data = bytearray(count)
        message.Recv([data, MPI.BYTE])
        self.bytes_received += count
        self._heard(rank, data)

    def _finish(self, rank: int) -> bool:
        """Hand over the message that is being received from a rank; False: it is not complete, or will never be."""
        receive = self._receives.get(rank)  # None: it died while we looked at another one
        if receive is None or not self._done(receive[0], rank) or self._receives.pop(rank, None) is None:
            return False
        self.bytes_received += len(receive[1])
        self._filled(rank, receive[1])
        return True

    # -- dying ---------------------------------------------------------------------------------------------------

    def _failed(self, rank: int, error: MPI.Exception) -> None:
        self._look_for_the_dead()
        if rank not in self.dead:
            self._lost(rank, str(error).splitlines()[0])

    def _look_for_the_dead(self) -> None:
        """Under ULFM: which ranks have died since we last looked; acknowledge them, so that probes go on."""
        group = self._comm.Get_failed()
        if group.Get_size() <= len(self.dead):
            group.Free()
            return
        world = self._comm.Get_group()
        failed = {int(rank) for rank in group.Translate_ranks(list(range(group.Get_size())), world)}
        self._comm.Ack_failed(group.Get_size())
        world.Free()
        group.Free()
        if not self.dead:
            atexit.register(_bound_the_end)
        for rank in failed - self.dead:
            self.dead.add(rank)
            self._lost(rank, "its process died")


def _bound_the_end() -> None:
    """MPI_Finalize, the last thing that a process does, takes seconds after a death and in 1 of 20 runs never ended."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(FINALIZE_TIMEOUT_S)
