"""Open MPI's all-reduce among hosts that no mpirun knows: `mpi4py` as its documentation shows it, then torch.optim.

Ranks are started by the harness, each in a network namespace. mpirun starts as many that do nothing but write down
what a rank finds in its environment, and wait; ours take it over. All that they still need of mpirun is its server, at
an address of this machine's loopback, which no namespace has: a process for each rank passes on what is said to it.

A rank that waits asks again and again; where time is dilated, with naps of `POLL_S` of the cluster's time between: a
host of its own could do that on a core of its own, and here 64 ranks have two.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from param_servers.benchmarks.exchange import Case
from param_servers.benchmarks.hosts import enter_network
from param_servers.errors import PeerLost
from param_servers.exchange import Pull, Receipt, RunStopped

PATIENCE_S = 60.0
POLL_S = 5e-6
RING = ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4")
_TCP_ONLY = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "coll", "^sm,han,xhc,acoll")
_SERVER = "PMIX_SERVER_URI4"


class RankOfMpirun:
    """This process, which the harness started, as a rank of mpirun's: MPI may be initialised afterwards.

    Args:
        choice: of mpirun's options.

    Raises:
        PeerLost: mpirun did not start its ranks in time.
    """

    def __init__(self, rank: int, case: Case, choice: tuple[str, ...] = ()) -> None:
        go_home = partial(enter_network, os.open(f"/proc/{os.getppid()}/ns/net", os.O_RDONLY))  # who started all ranks
        self._folder = Path(tempfile.gettempdir()) / f"dba3c-mpirun-{os.getppid()}"  # the same of all ranks
        self._mpirun = self._start_mpirun(case, choice, go_home) if rank == 0 else None
        os.environ |= self._found_by_rank(rank)
        if case.rate_mbit:
            _pass_on(int(os.environ[_SERVER].rpartition(":")[2]), go_home)

    def leave(self, done: bool) -> None:
        """Without MPI_Finalize, which would wait for ranks that mpirun started. Who still speaks to a rank that has
        left is ended by Open MPI, so all leave when all are `done`."""
        try:
            if done:
                self._leave_together()
        finally:
            if self._mpirun is not None:
                self._mpirun.terminate()
                self._mpirun.wait(PATIENCE_S)
                shutil.rmtree(self._folder)

    def _leave_together(self) -> None:
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()  # the harness ends ranks that never come
        (self._folder / f"left-{MPI.COMM_WORLD.rank}").touch()
        deadline_s = time.monotonic() + PATIENCE_S
        while len(list(self._folder.glob("left-*"))) < MPI.COMM_WORLD.size and self._folder.exists():
            if time.monotonic() > deadline_s:
                raise PeerLost(f"not all ranks were done within {PATIENCE_S:g} s")
            time.sleep(0.05)

    def _start_mpirun(
        self, case: Case, choice: tuple[str, ...], go_home: Callable[[], None]
    ) -> subprocess.Popen[bytes]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        interface = ("--mca", "btl_tcp_if_include", "eth0" if case.rate_mbit else "lo")
        options = ("--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", *_TCP_ONLY)
        if dilation(case) > 1:
            nap_ns = f"{1e9 * POLL_S * dilation(case):.0f}"
            options += ("--mca", "threads_pthreads_yield_strategy", "nanosleep")
            options += ("--mca", "threads_pthreads_nanosleep_time", nap_ns)
        writes = f"env -0 > {self._folder}/new-$PMIX_RANK; mv {self._folder}/new-$PMIX_RANK {self._folder}/$PMIX_RANK"
        command = (_mpirun(), *options, *interface, *choice, "-n", str(case.workers))

        def at_home() -> None:
            go_home()
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # with rank 0

        return subprocess.Popen([*command, "sh", "-c", f"{writes}; exec sleep 3600"], preexec_fn=at_home)

    def _found_by_rank(self, rank: int) -> dict[str, str]:
        deadline_s, path = time.monotonic() + PATIENCE_S, self._folder / str(rank)
        while not path.exists():
            if time.monotonic() > deadline_s:
                raise PeerLost(f"mpirun did not start rank {rank} within {PATIENCE_S:g} s")
            time.sleep(0.1)
        words = path.read_text(encoding="utf-8").split("\0")
        return dict(word.split("=", 1) for word in words if word)


class OpenMpi:
    """`Allreduce` of one flat gradient over TCP, by the algorithm that Open MPI chooses. See `RankOfMpirun`."""

    choice: tuple[str, ...] = ()

    def __init__(self, rank: int, case: Case, addresses: Callable[[int], str]) -> None:
        self._of_mpirun = RankOfMpirun(rank, case, self.choice)
        from mpi4py import MPI  # optional, and importing it is MPI_Init

        self._mpi, self._ranks = MPI, MPI.COMM_WORLD
        self._parameters = torch.nn.Parameter(torch.zeros(case.numel))
        self._optimizer = torch.optim.RMSprop([self._parameters], lr=7e-4)
        self._case, self._step = case, 0
        self._ranks.Barrier()

    def pull(self) -> Pull:
        if self._step >= self._case.last_step:
            raise RunStopped("measured")
        return Pull(self._parameters.detach(), self._step, 0)

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        summed = gradient.numpy().copy()
        self._ranks.Allreduce(self._mpi.IN_PLACE, summed, op=self._mpi.SUM)
        self._parameters.grad = torch.from_numpy(summed) / self._ranks.size
        self._optimizer.step()
        self._step += 1
        return Receipt(True, self._step)

    def close(self) -> None:
        self._of_mpirun.leave(done=self._step >= self._case.last_step)


class OpenMpiRing(OpenMpi):
    """`Allreduce` by a ring."""

    choice = RING


def dilation(case: Case) -> float:
    """D, of links of 1 Gbit/s."""
    return 1e3 / case.rate_mbit if case.rate_mbit else 1.0


def found() -> bool:
    """Whether Open MPI is installed."""
    return _mpirun() is not None


def _mpirun() -> str | None:
    return shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def _pass_on(port: int, go_home: Callable[[], None]) -> None:
    """Connections to this port of this network's loopback reach the same port of the machine's."""
    listener = socket.create_server(("127.0.0.1", port))
    if os.fork() == 0:
        _relay(listener, port, go_home)
    listener.close()


def _relay(listener: socket.socket, port: int, go_home: Callable[[], None]) -> NoReturn:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with its rank
    go_home()
    other: dict[socket.socket, socket.socket] = {}
    while True:
        for one in select.select([listener, *other], [], [])[0]:
            if one is listener:
                near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                other[near], other[far] = far, near
            elif one not in other:  # its other end has gone in this round
                continue
            elif data := one.recv(1 << 16):
                other[one].sendall(data)
            else:
                for end in (one, other.pop(one)):
                    other.pop(end, None)
                    end.close()
