"""What an all-reduce needs from whoever carries it, and the carrier that is always there: torch.distributed.

    collective.all_reduce_sum_(tensor)      in place, on the CPU; bit-equal on all ranks when it returns
    collective.broadcast_(tensor, root=0)

No call waits for ever: each raises PeerLost, which names the ranks that are missing where the backend can tell. Other
carriers are those of `mpi_horovod`.

**torch.distributed neither authenticates nor encrypts** (PyTorch's SECURITY.md): whoever can reach the store's port can
list its keys, read, change and delete them, and whoever is on the path of the tensors can read and change those. The
name under which keys are kept is no secret. What is done: store and Gloo listen on one chosen address only, by default
loopback. Choose an interface on a network that you trust, or parameter servers, whose links are authenticated.
"""

import hashlib
import hmac
import socket
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from param_servers.config import ExchangeConfig
from param_servers.errors import PeerLost, first_line
from param_servers.exchange import Publish, Resolve
from param_servers.timeouts import GRACE_S, ROLL_CALL_S, within
from param_servers.wire.tcp_sockets import listen_address

TRY_S = 10.0
"""How long one address of rank 0 is tried at a time."""


class Collective(Protocol):
    """A fixed group of ranks."""

    rank: int
    size: int
    lost: set[int]
    """Ranks found missing by the call that raised PeerLost."""
    patience_s: float
    """How long a call waits for the others; who uses it may change it."""

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks.

        Raises:
            PeerLost: a rank did not take part within `patience_s`, or its connection broke.
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
    began_s = time.monotonic()
    while (address := resolve(rank)) is None:
        waited_s = time.monotonic() - began_s
        if waited_s > timeout_s:
            raise PeerLost(f"rank {rank} published no address within {timeout_s:g} s")
        time.sleep(min(max(0.02, waited_s / 10), 0.5))  # many ranks may wait for minutes
    return address


def describe_lost(ranks: Iterable[int], size: int, why: str) -> str:
    """One line for PeerLost."""
    missing = sorted(ranks)
    if not missing:
        return f"the all-reduce of {size} ranks broke: {why}"
    named, do = ("ranks", "do") if len(missing) > 1 else ("rank", "does")
    return f"{named} {', '.join(map(str, missing))} of {size} {do} not answer: {why}"


# -- over torch.distributed ----------------------------------------------------------------------------------------


def host_store(host: str, port: int, secret: bytes, timeout_s: float) -> tuple[Any, int]:
    """The key-value store through which ranks find each other, listening on (host, port); 0: any port, returned."""
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    timeout = timedelta(seconds=timeout_s)
    # torch closes the descriptor it is given. Left to itself it would listen on all interfaces.
    store = TCPStore(host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())
    return _private(store, secret), port


def reach_store(resolve: Resolve, secret: bytes, timeout_s: float) -> Any:
    """The store that rank 0 hosts, wherever `resolve` says at each try: at first perhaps where its earlier life was.

    Raises:
        PeerLost: it did not answer within `timeout_s`.
    """
    until_s, left_s = time.monotonic() + timeout_s, timeout_s
    while True:
        host, port = wait_for_address(resolve, 0, left_s)
        patience = timedelta(seconds=max(1.0, min(TRY_S, left_s)))
        connect = partial(TCPStore, host, port, None, False, patience, wait_for_workers=False)
        try:  # torch would wait for ever for a stopped host, whose kernel takes the connection
            store = within(patience.total_seconds() + GRACE_S, connect)
        except (RuntimeError, TimeoutError) as error:
            if (left_s := until_s - time.monotonic()) <= 0:
                raise PeerLost(f"rank 0 at {host}:{port} did not answer: {first_line(error)}") from error
            time.sleep(0.5)
        else:
            store.set_timeout(timedelta(seconds=timeout_s))
            return _private(store, secret)


def _private(store: Any, secret: bytes) -> Any:
    return PrefixStore(hmac.new(secret, b"torch store", hashlib.sha256).hexdigest(), store)


class TorchCollective:
    """See `Collective`.

    Args:
        store: see `host_store`.
        config: where to listen for the other ranks' tensors, and how long a call, and here the others, may take.
        generation: from 1 on, of a majority's groups, which use the same store: the chief calls for them when all are
            there, and after a failure knows who is lost.

    Raises:
        PeerLost: not all ranks came; the message names them.
    """

    def __init__(self, rank: int, size: int, store: Any, config: ExchangeConfig, generation: int = 0) -> None:
        self.rank, self.size, self.lost, self.patience_s = rank, size, set[int](), config.step_timeout_s
        self._store, self._config = PrefixStore(f"group/{generation}", store), config
        self._roll_call_s = 0.0 if generation else min(ROLL_CALL_S, config.step_timeout_s)
        join_timeout_s = config.step_timeout_s if generation else config.join_timeout_s
        if missing := self._missing("here", join_timeout_s):
            raise PeerLost(describe_lost(missing, size, f"did not come within {join_timeout_s:g} s"))
        self._group: Any
        try:
            self._group = within(config.step_timeout_s + GRACE_S, self._build)
        except (RuntimeError, TimeoutError) as error:
            raise PeerLost(describe_lost((), size, first_line(error))) from error

    def _build(self) -> dist.ProcessGroupGloo:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        host = listen_address(self._config.listen_host, self._config.interface)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=self._config.step_timeout_s)
        options._threads = 1
        return dist.ProcessGroupGloo(self._store, self.rank, self.size, options)

    @classmethod
    def join(
        cls, rank: int, config: ExchangeConfig, *, secret: bytes, publish: Publish, resolve: Resolve
    ) -> "TorchCollective":
        """Open the store, then the group of all workers. Raises PeerLost."""
        timeout_s = config.join_timeout_s
        address = listen_address(config.listen_host, config.interface)
        if rank == 0:
            store, port = host_store(address, config.port, secret, timeout_s)
            publish(address, port)
        else:
            store = reach_store(resolve, secret, timeout_s)
        return cls(rank, config.num_workers, store, config)

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=self.patience_s)
        self._call(lambda group: group.allreduce([tensor], options).wait())

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, timedelta(seconds=self.patience_s)
        self._call(lambda group: group.broadcast([tensor], options).wait())

    def close(self) -> None:
        self._group = None

    def _call(self, call: Callable[[Any], object]) -> None:
        if self._group is None:
            raise PeerLost(describe_lost(self.lost, self.size, "this group is closed"))
        try:
            call(self._group)
            return
        except RuntimeError as error:
            why = first_line(error)
        # Our connections close first: ranks that wait for us then fail at once too and answer the roll call. Not
        # within `except`, for the error's trace holds the group, and a group closes with its last holder.
        self.close()
        self.lost = self._missing("survived", self._roll_call_s)
        raise PeerLost(describe_lost(self.lost, self.size, why))

    def _missing(self, call: str, timeout_s: float) -> set[int]:
        """Answer a roll call in the store; returns the ranks that did not within `timeout_s`."""
        try:
            return within(timeout_s + GRACE_S, lambda: self._call_roll(call, timeout_s))
        except TimeoutError:
            return {0} - {self.rank}  # it holds the store, which takes questions and answers none: it is stopped

    def _call_roll(self, call: str, timeout_s: float) -> set[int]:
        keys = {rank: f"{call}/{rank}" for rank in range(self.size)}
        missing = {0}  # should the store be gone before it is asked: rank 0 held it
        deadline_s = time.monotonic() + timeout_s
        try:
            self._store.set(keys[self.rank], "")
            late = False
            while (missing := {rank for rank, key in keys.items() if not self._store.check([key])}) and not late:
                time.sleep(0.01)
                late = time.monotonic() > deadline_s  # and one look more: this process may have been stopped
        except RuntimeError:
            pass  # rank 0 left with the store: lost, unless it had answered
        return missing
