"""As much of mpi4py as `mpi_world` uses, for one rank: the test says what arrives, what is complete and who is dead."""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import param_servers.wire.frames  # noqa: F401 (what is loaded for the first time within `mpi_of` is forgotten after it)


class MpiError(Exception):
    """`MPI.Exception`."""


class Status:
    """Whose message was probed, and its bytes."""

    source = count = 0

    def Get_source(self) -> int:
        return self.source

    def Get_count(self, datatype: Any) -> int:
        return self.count


class Receive:
    """A message that was probed, and the request to receive it."""

    def __init__(self, world: "FakeWorld", source: int, data: bytes) -> None:
        self.world, self.source, self.data = world, source, data
        self.target: memoryview | None = None

    def Recv(self, buffer: list[Any]) -> None:
        memoryview(buffer[0])[:] = self.data

    def Irecv(self, buffer: list[Any]) -> "Receive":
        self.target = buffer[0]
        return self

    def Test(self) -> bool:
        if self.source in self.world.dead:
            raise MpiError("MPI_ERR_PROC_FAILED")
        if self.world.slow:
            return False
        assert self.target is not None
        self.target[:] = self.data
        return True


class Group:
    """A group of ranks."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def Get_size(self) -> int:
        return len(self.ranks)

    def Translate_ranks(self, ranks: list[int], other: "Group") -> list[int]:
        return [self.ranks[rank] for rank in ranks]

    def Free(self) -> None: ...


class FakeWorld:
    """COMM_WORLD of 4 ranks, seen from rank 0."""

    def __init__(self) -> None:
        self.arriving: deque[tuple[int, bytes]] = deque()
        self.sent: list[tuple[int, bytes]] = []
        self.dead: set[int] = set()
        self.slow = False
        """Whether payloads stay incomplete."""

    def Set_errhandler(self, handler: Any) -> None: ...

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 4

    def Get_failed(self) -> Group:
        return Group(sorted(self.dead))

    def Get_group(self) -> Group:
        return Group([0, 1, 2, 3])

    def Ack_failed(self, count: int) -> None: ...

    def Isend(self, buffer: list[Any], rank: int, tag: int) -> Any:
        if rank in self.dead:
            raise MpiError("MPI_ERR_PROC_FAILED")
        self.sent.append((rank, bytes(buffer[0])))
        return SimpleNamespace(Test=lambda: True)

    def Improbe(self, source: int, tag: int, status: Status) -> Receive | None:
        if not self.arriving:
            return None
        status.source, data = self.arriving.popleft()
        status.count = len(data)
        return Receive(self, status.source, data)


@contextmanager
def mpi_of(world: FakeWorld) -> Iterator[Any]:
    """`MpiHub` over this world; the real MPI, if there is one, is not started, and nothing is left to do at exit."""
    names = dict.fromkeys(("BYTE", "ANY_SOURCE", "ERRORS_RETURN"), 0)
    mpi = SimpleNamespace(COMM_WORLD=world, Exception=MpiError, Status=Status, Request=Any, Message=Any, **names)
    with mock.patch.dict("sys.modules", {"mpi4py": SimpleNamespace(MPI=mpi)}), mock.patch("atexit.register"):
        for name in ("param_servers.wire.mpi_world", "param_servers.wire.mpi_hub"):
            sys.modules.pop(name, None)
        from param_servers.wire.mpi_hub import MpiHub

        yield MpiHub
