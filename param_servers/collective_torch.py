"""All-reduce over torch.distributed: Gloo, or NCCL where each rank computes on a GPU of its own (never run so far).

torch.distributed neither authenticates nor encrypts (PyTorch's SECURITY.md). Keys in the store are kept under a name
that only processes with the run's secret know, and everything listens on one chosen address, by default loopback;
still: choose an interface on a network that you trust.
"""

import hashlib
import hmac
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from param_servers.bounded import within
from param_servers.collective import Publish, Resolve, describe_lost, first_line, wait_for_address
from param_servers.errors import PeerLost
from param_servers.gpus import NO_GPU, gpu_of, numbered, sum_by_nccl
from param_servers.interfaces import listen_address
from param_servers.timeouts import GRACE_S, ROLL_CALL_S


def host_store(host: str, port: int, secret: bytes, timeout_s: float) -> tuple[Any, int]:
    """The key-value store through which ranks find each other, listening on (host, port); 0: any port, returned."""
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    timeout = timedelta(seconds=timeout_s)
    # torch closes the descriptor it is given. Left to itself it would listen on all interfaces.
    store = TCPStore(host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())
    return _private(store, secret), port


def reach_store(host: str, port: int, secret: bytes, timeout_s: float) -> Any:
    """The store that another rank hosts at (host, port).

    Raises:
        PeerLost: it did not answer within `timeout_s`.
    """
    timeout = timedelta(seconds=timeout_s)
    try:  # torch would wait for ever for a stopped host, whose kernel takes the connection
        store = within(timeout_s + GRACE_S, lambda: TCPStore(host, port, None, False, timeout, wait_for_workers=False))
    except (RuntimeError, dist.DistError, TimeoutError) as error:
        raise PeerLost(f"rank 0 at {host}:{port} did not answer: {first_line(error)}") from error
    return _private(store, secret)


def _private(store: Any, secret: bytes) -> Any:
    return PrefixStore(hmac.new(secret, b"torch store", hashlib.sha256).hexdigest(), store)


def gloo_group(
    store: Any, rank: int, size: int, host: str, interface: str | None, timeout_s: float
) -> dist.ProcessGroupGloo:
    """A group of `size` ranks that listens on `interface`, or on the address `host`."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    where = {"interface": interface} if interface else {"hostname": host}
    options._devices = [dist.ProcessGroupGloo.create_device(**where)]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1
    return dist.ProcessGroupGloo(store, rank, size, options)


class TorchCollective:
    """See `Collective`.

    Args:
        store: see `host_store`; `generation` keeps groups that use the same store apart.
        host, interface: where to listen for the other ranks' tensors.
        step_timeout_s, join_timeout_s: longest wait in a call, and here for the others to come.
        device: where this rank computes, "cpu" or "cuda"; the sum is on the GPUs when no two ranks share one.
        roll_call_s: after a failure, how long survivors wait for each other's names.
    Raises:
        PeerLost: not all ranks came; the message names them.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any,
        *,
        host: str = "127.0.0.1",
        interface: str | None = None,
        step_timeout_s: float = 60.0,
        join_timeout_s: float = 300.0,
        device: str = "cpu",
        generation: int = 0,
        roll_call_s: float = ROLL_CALL_S,
    ) -> None:
        self.rank, self.size, self.lost = rank, size, set[int]()
        device = numbered(device)  # the group is built in another thread
        self.device, self._gpu = torch.device("cpu"), gpu_of(device)
        self._store = PrefixStore(f"group/{generation}", store)
        self._roll_call_s = min(roll_call_s, step_timeout_s)
        self._whole = False
        if missing := self._missing("here", join_timeout_s):
            self.lost = missing
            raise PeerLost(describe_lost(missing, size, f"did not come within {join_timeout_s:g} s"))
        self._group: Any
        try:
            build = partial(self._build, host, interface, step_timeout_s, device)
            self._group = within(step_timeout_s + GRACE_S, build)
        except (RuntimeError, TimeoutError) as error:
            raise PeerLost(describe_lost((), size, first_line(error))) from error

    def _build(self, host: str, interface: str | None, step_timeout_s: float, device: str) -> Any:
        # Each rank has answered the roll call with the name of its GPU.
        if self._gpu == NO_GPU or not sum_by_nccl([self._store.get(key).decode() for key in self._keys("here")]):
            return gloo_group(self._store, self.rank, self.size, host, interface, step_timeout_s)
        self.device, self._whole = torch.empty(0, device=device).device, True
        torch.cuda.set_device(self.device)  # of this thread
        timeout = timedelta(seconds=step_timeout_s)
        dist.init_process_group("nccl", store=self._store, rank=self.rank, world_size=self.size, timeout=timeout)
        return dist.group.WORLD

    @classmethod
    def join(
        cls,
        rank: int,
        size: int,
        *,
        secret: bytes,
        publish: Publish,
        resolve: Resolve,
        host: str = "127.0.0.1",
        port: int = 0,
        interface: str | None = None,
        step_timeout_s: float = 60.0,
        join_timeout_s: float = 300.0,
        device: str = "cpu",
    ) -> "TorchCollective":
        """Open the store, then the group. Raises PeerLost."""
        address = listen_address(host, interface)
        if rank == 0:
            store, port = host_store(address, port, secret, join_timeout_s)
            publish(address, port)
        else:
            store = reach_store(*wait_for_address(resolve, 0, join_timeout_s), secret, join_timeout_s)
        return cls(
            rank,
            size,
            store,
            host=address,
            interface=interface,
            step_timeout_s=step_timeout_s,
            join_timeout_s=join_timeout_s,
            device=device,
        )

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        """See `Collective`."""
        self._call(lambda group: group.allreduce([tensor]).wait())

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        """See `Collective`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._call(lambda group: group.broadcast([tensor], options).wait())

    def close(self) -> None:
        """See `Collective`."""
        if self._whole and self._group is not None:
            dist.destroy_process_group()
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
            return {0}  # it holds the store, which takes questions and answers none: it is stopped

    def _keys(self, call: str) -> list[str]:
        return [f"{call}/{rank}" for rank in range(self.size)]

    def _call_roll(self, call: str, timeout_s: float) -> set[int]:
        keys = dict(enumerate(self._keys(call)))
        missing = {0}  # should the store be gone before it is asked: rank 0 held it
        deadline_s = time.monotonic() + timeout_s
        try:
            self._store.set(keys[self.rank], self._gpu)
            while missing := {rank for rank, key in keys.items() if not self._store.check([key])}:
                if time.monotonic() > deadline_s:
                    return missing
                time.sleep(0.01)
        except (RuntimeError, dist.DistError):
            return missing  # rank 0 left with the store: lost, unless it had answered
        return set()
