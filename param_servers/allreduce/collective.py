"""What an all-reduce needs from whoever carries it. Backends: torch.distributed, mpi4py, Horovod.

    collective.all_reduce_sum_(tensor)      in place, on the CPU; bit-equal on all ranks when it returns
    collective.broadcast_(tensor, root=0)

No call waits for ever: each raises PeerLost, which names the ranks that are missing where the backend can tell.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

from param_servers.errors import PeerLost

Resolve = Callable[[int], tuple[str, int] | None]
"""Rank -> the address where it listens, or None while it is not known."""
Publish = Callable[[str, int], None]
"""Makes this process's address known."""


class Collective(Protocol):
    """A fixed group of ranks."""

    rank: int
    size: int
    lost: set[int]
    """Ranks found missing by the call that raised PeerLost."""

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks.

        Raises:
            PeerLost: a rank did not take part within the step timeout, or its connection broke.
        """
        ...

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        """Replace `tensor` by that of `root`. Raises as above."""
        ...

    def close(self) -> None:
        """Leave the group. Safe to call twice."""
        ...


def wait_for_address(resolve: Resolve, rank: int, timeout_s: float) -> tuple[str, int]:
    """Ask `resolve` until it knows. Raises PeerLost."""
    deadline_s = time.monotonic() + timeout_s
    while (address := resolve(rank)) is None:
        if time.monotonic() > deadline_s:
            raise PeerLost(f"rank {rank} published no address within {timeout_s:g} s")
        time.sleep(0.02)
    return address


def describe_lost(ranks: Iterable[int], size: int, why: str) -> str:
    """One line for PeerLost."""
    missing = sorted(ranks)
    if not missing:
        return f"the all-reduce of {size} ranks broke: {why}"
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {size} lost: {why}"


def first_line(error: BaseException) -> str:
    """The first line of a library's error, which may be followed by a C++ back trace."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
