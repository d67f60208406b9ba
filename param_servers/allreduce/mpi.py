"""All-reduce over MPI (mpi4py), for fabrics where MPI is at home.

Calls are the non-blocking ones, polled: so a rank that is silent is found after a stated time instead of never. By
default mpirun ends all ranks when one dies.
"""

import atexit
import time

from mpi4py import MPI
from torch import Tensor

from param_servers.allreduce.collective import describe_lost, first_line
from param_servers.errors import PeerLost
from param_servers.timeouts import Timeouts

SPIN_S = 0.002
"""A call that takes longer waits for a straggler: from then on this process sleeps between polls."""
_NAP_S = 0.0002
_ROLL_CALL_S = 1.0
_ROLL_CALL_TAG = 7


class MpiCollective:
    """See `Collective`. The ranks are those of `communicator` (default: all of mpirun's).

    Raises:
        PeerLost: not all ranks came within the join timeout.
    """

    def __init__(
        self,
        communicator: MPI.Comm | None = None,
        *,
        step_timeout_s: float = 60.0,
        join_timeout_s: float = 300.0,
        first_survivor_s: float = Timeouts().first_survivor_s,
    ) -> None:
        self._comm = communicator if communicator is not None else MPI.COMM_WORLD
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size, self.lost = self._comm.Get_rank(), self._comm.Get_size(), set[int]()
        self._step_timeout_s, self._first_survivor_s = step_timeout_s, first_survivor_s
        self._broken = False
        atexit.register(self._leave)
        self._wait(self._comm.Ibarrier(), join_timeout_s)

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        """See `Collective`. MPI knows no bfloat16."""
        self._wait(self._comm.Iallreduce(MPI.IN_PLACE, tensor.numpy(), op=MPI.SUM), self._step_timeout_s)

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        """See `Collective`."""
        self._wait(self._comm.Ibcast([tensor.numpy(), MPI.BYTE], root), self._step_timeout_s)

    def close(self) -> None:
        """See `Collective`. MPI itself is finalised when the process ends."""

    def _leave(self) -> None:
        """At the end of the process: MPI_Finalize would wait for a lost rank for ever, so abort instead."""
        if not self._broken:
            return
        survivors = set(range(self.size)) - self.lost
        if self.rank != min(survivors, default=self.rank):
            time.sleep(self._first_survivor_s)  # it writes the last checkpoint
        MPI.COMM_WORLD.Abort(1)

    def _wait(self, request: MPI.Request, timeout_s: float) -> None:
        start_s = time.monotonic()
        try:
            while not request.Test():
                waited_s = time.monotonic() - start_s
                if waited_s > timeout_s:
                    self._broken = True
                    self.lost = self._silent()
                    raise PeerLost(describe_lost(self.lost, self.size, f"no answer within {timeout_s:g} s"))
                time.sleep(0 if waited_s < SPIN_S else _NAP_S)
        except MPI.Exception as error:
            self._broken = True
            raise PeerLost(describe_lost((), self.size, first_line(error))) from error

    def _silent(self) -> set[int]:
        """Who does not say that it, too, has waited in vain."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        empty = bytearray(1)
        calls = [self._comm.Isend(empty, rank, _ROLL_CALL_TAG) for rank in others]
        answers = {rank: self._comm.Irecv(bytearray(1), rank, _ROLL_CALL_TAG) for rank in others}
        deadline_s = time.monotonic() + _ROLL_CALL_S
        silent = set(others)
        while silent and time.monotonic() < deadline_s:
            silent = {rank for rank in silent if not answers[rank].Test()}
            time.sleep(_NAP_S)
        for request in [*calls, *(answers[rank] for rank in silent)]:
            request.Free() if request in calls else request.Cancel()
        return silent
