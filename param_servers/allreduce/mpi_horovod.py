"""All-reduce over what a launcher brings: MPI (mpi4py), for fabrics where it is at home, and Horovod.

MPI's calls are the non-blocking ones, polled: so a rank that is silent is found after a stated time instead of never.
By default mpirun ends all ranks when one dies. Horovod runs under `horovodrun` or mpirun; it is dormant (its last
version is 0.28.1 of 2023) and is built from source: see launch/install/horovod.sh.
"""

import atexit
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.allreduce.collective import describe_lost
from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError, PeerLost, first_line
from param_servers.timeouts import ROLL_CALL_S

_ROLL_CALL_TAG = 7
_BUILD = Path(__file__).parents[2] / "launch" / "install" / "horovod.sh"


class MpiCollective:
    """See `Collective`. The ranks are all of mpirun's.

    Raises:
        ConfigError: mpi4py is not installed, or finds no MPI.
        PeerLost: not all ranks came within the join timeout.
    """

    spin_s = 0.002
    """A call that takes longer waits for a straggler: from then on this process sleeps between polls."""
    nap_s = 0.0002

    def __init__(self, config: ExchangeConfig) -> None:
        try:
            from mpi4py import MPI  # which begins MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                f"collective_backend mpi cannot be loaded ({first_line(error)}): pip install mpi4py"
            ) from error
        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size, self.lost = self._comm.Get_rank(), self._comm.Get_size(), set[int]()
        self.patience_s, self._first_survivor_s = config.step_timeout_s, config.timeouts.first_survivor_s
        self._broken = False
        self._reads: Any = None
        atexit.register(self._leave)
        self._wait(self._comm.Ibarrier(), config.join_timeout_s)

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        """See `Collective`. MPI knows no bfloat16.

        Not in place: there Open MPI's non-blocking call takes a binomial tree. Else, from 4 ranks and 64 KB on, it
        halves and gathers, as Rabenseifner does (4 ranks, 2.7 MB at 1 Gbit/s, time-dilated: 110 ms, now 35).
        """
        summed = tensor.numpy()
        self._reads = summed.copy()  # until the sum is there MPI does, and mpi4py does not keep it
        self._wait(self._comm.Iallreduce(self._reads, summed, op=self._mpi.SUM), self.patience_s)

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        self._wait(self._comm.Ibcast([tensor.numpy(), self._mpi.BYTE], root), self.patience_s)

    def close(self) -> None:
        """See `Collective`. MPI itself is finalised when the process ends."""

    def _leave(self) -> None:
        """At the end of the process: MPI_Finalize would wait for a lost rank for ever, so abort instead."""
        if not self._broken:
            return
        survivors = set(range(self.size)) - self.lost
        if self.rank != min(survivors, default=self.rank):
            time.sleep(self._first_survivor_s)  # it writes the last checkpoint
        self._comm.Abort(1)

    def _wait(self, request: Any, timeout_s: float) -> None:
        start_s = time.monotonic()
        try:
            while not request.Test():
                waited_s = time.monotonic() - start_s
                if waited_s > timeout_s:
                    self._broken = True
                    self.lost = self._silent()
                    raise PeerLost(describe_lost(self.lost, self.size, f"waited {timeout_s:g} s"))
                time.sleep(0 if waited_s < self.spin_s else self.nap_s)
        except self._mpi.Exception as error:
            self._broken = True
            raise PeerLost(describe_lost((), self.size, first_line(error))) from error

    def _silent(self) -> set[int]:
        """Who does not say that it, too, has waited in vain."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        empty = bytearray(1)
        calls = [self._comm.Isend(empty, rank, _ROLL_CALL_TAG) for rank in others]
        answers = {rank: self._comm.Irecv(bytearray(1), rank, _ROLL_CALL_TAG) for rank in others}
        deadline_s = time.monotonic() + ROLL_CALL_S
        silent = set(others)
        while silent and time.monotonic() < deadline_s:
            silent = {rank for rank in silent if not answers[rank].Test()}
            time.sleep(self.nap_s)
        for call in calls:
            call.Free()
        for rank in silent:
            answers[rank].Cancel()
        return silent


class HorovodCollective:
    """See `Collective`. One for each process.

    Raises:
        ConfigError: Horovod is not installed, or was built against another torch.
        PeerLost: not all ranks came.
    """

    cycle_ms = 0.1
    """Horovod's default of 1 is added to every step."""

    def __init__(self, config: ExchangeConfig) -> None:
        # Horovod reads these once, when it starts. Without them it would wait for a silent rank for ever; with a later
        # step's patience it would end a run in which a rank reads a checkpoint, or fills its replay, before the first.
        patience_s = config.timeouts.first_sum_s
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(config.step_timeout_s // 2))))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(patience_s))))
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(1, int(config.join_timeout_s))))
        os.environ.setdefault("HOROVOD_CYCLE_TIME", f"{self.cycle_ms:g}")
        try:
            import horovod.torch as hvd
        except (ImportError, OSError) as error:
            raise ConfigError(
                f"collective_backend horovod cannot be loaded ({first_line(error)}): run {_BUILD} VENV"
            ) from error
        self._hvd = hvd
        self.rank, self.size, self.lost = 0, 0, set[int]()
        self.patience_s = patience_s  # once and for all, above
        self._guarded(hvd.init)
        self.rank, self.size = hvd.rank(), hvd.size()

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        self._guarded(lambda: self._hvd.synchronize(self._begin_sum(tensor)))

    def _begin_sum(self, tensor: Tensor) -> int:
        handle: int = self._hvd.allreduce_async_(tensor, op=self._hvd.Sum, name="param_servers.sum")
        return handle

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        self._guarded(lambda: self._hvd.broadcast_(tensor, root, name=f"param_servers.broadcast.{tensor.dtype}"))

    def close(self) -> None:
        self._hvd.shutdown()

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (self._hvd.HorovodInternalError, RuntimeError, ValueError) as error:
            raise PeerLost(describe_lost((), self.size, first_line(error))) from error
