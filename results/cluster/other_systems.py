"""What a user would pick instead, as its own documentation shows it, behind pull and push: measured as ours are.

Every rank takes the same optimizer step on the mean, as ours do. None of them knows backup workers, a late worker, or a
lost one.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from open_mpi import POLL_S, OpenMpi, OpenMpiRing, dilation, found
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from param_servers.benchmarks.exchange import Case, Others
from param_servers.benchmarks.hosts import SWITCH_ADDRESS, in_network_of_switch
from param_servers.errors import PeerLost
from param_servers.exchange import Pull, Receipt, RunStopped

try:
    import horovod.torch as hvd
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http.http_server import RendezvousServer
except ImportError:  # optional: then it is not measured
    hvd = None

PORT = 29_500
PATIENCE = timedelta(seconds=600)
"""At D = 1,000 the slowest rank of a step may compute for two minutes more than the fastest."""
HOROVOD_CYCLE_MS = 1.0
HOROVOD_WAIT_S = 900
"""Gloo's timeout of every wait of Horovod's: for each address when ranks join, for each sum (which has `PATIENCE`)."""
_CLONE_NEWUTS = 0x04000000
Addresses = Callable[[int], str]


def meet(rank: int, case: Case, addresses: Addresses) -> None:
    """As torchrun would have set it."""
    os.environ |= {"MASTER_ADDR": addresses(0), "MASTER_PORT": str(PORT)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"} if case.rate_mbit else {}


class PlainAllReduce:
    """torch.distributed's all_reduce of one flat gradient over Gloo, then torch.optim."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        meet(rank, case, addresses)
        dist.init_process_group("gloo", rank=rank, world_size=case.workers, timeout=PATIENCE)
        self._parameters = torch.nn.Parameter(torch.zeros(case.numel))
        self._optimizer = torch.optim.RMSprop([self._parameters], lr=7e-4)
        self._case, self._step = case, 0

    def pull(self) -> Pull:
        if self._step >= self._case.last_step:
            raise RunStopped("measured")
        return Pull(self._parameters.detach(), self._step, 0)

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        self._parameters.grad = gradient.clone()
        dist.all_reduce(self._parameters.grad)
        self._parameters.grad /= self._case.workers
        self._optimizer.step()
        self._step += 1
        return Receipt(True, self._step)

    def close(self) -> None:
        dist.destroy_process_group()


class DataParallel(PlainAllReduce):
    """DistributedDataParallel over Gloo, which sums in its backward pass, then torch.optim."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        super().__init__(rank, case, addresses)
        layers = torch.nn.ParameterList(torch.zeros(len(part)) for part in torch.zeros(case.numel).chunk(8))
        self._model = DistributedDataParallel(_Product(layers))
        self._optimizer = torch.optim.RMSprop(self._model.parameters(), lr=7e-4)

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        self._optimizer.zero_grad()
        self._model(gradient).backward()  # whose gradient is `gradient`
        self._optimizer.step()
        self._step += 1
        return Receipt(True, self._step)


class _Product(torch.nn.Module):
    def __init__(self, layers: torch.nn.ParameterList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, gradient: Tensor) -> Tensor:
        return sum(layer @ part for layer, part in zip(self.layers, gradient.chunk(8), strict=True))


class RankOfHorovod:
    """What horovodrun would have told this rank: Horovod may be initialised afterwards. Rank 0 starts the rendezvous.

    All ranks ask it for all others. At rank 0's dilated link 64 of them took minutes for that, so it is at the switch
    (horovodrun's is at its own host); on two cores they still need up to five, where Horovod waits for 30 s.
    HOROVOD_GLOO_IFACE is not read where it makes the group of its sums: that listens where the host's name points to.

    Args:
        cycle_ms: of the cluster's time; ranks ask each other in each cycle what is to be summed.
    """

    def __init__(self, rank: int, case: Case, addresses: Addresses, cycle_ms: float) -> None:
        n = case.workers
        os.environ |= {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(n), "HOROVOD_LOCAL_RANK": "0"}
        os.environ |= {"HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": str(rank), "HOROVOD_CROSS_SIZE": str(n)}
        os.environ |= {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_HOSTNAME": f"host{rank}",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": f"{HOROVOD_WAIT_S}",
        }
        meeting_at = SWITCH_ADDRESS if case.rate_mbit else addresses(0)
        os.environ |= {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": meeting_at,
            "HOROVOD_CYCLE_TIME": f"{cycle_ms * dilation(case):g}",
        }
        os.environ |= {"HOROVOD_GLOO_IFACE": "eth0"} if case.rate_mbit else {}
        if case.rate_mbit:
            unshare = ctypes.CDLL(None, use_errno=True).unshare
            if unshare(_CLONE_NEWUTS) != 0:
                raise OSError(ctypes.get_errno(), "a host name of its own needs root")
            socket.sethostname(addresses(rank))
        # kept: it is rank 0's to serve
        self._store = store = dist.TCPStore(addresses(0), PORT, None, rank == 0, PATIENCE, wait_for_workers=False)
        self._rendezvous = RendezvousServer(0) if rank == 0 else None
        if self._rendezvous is not None:
            with in_network_of_switch() if case.rate_mbit else nullcontext():
                port = self._rendezvous.start()
            self._rendezvous.init(get_host_assignments([HostInfo(f"host{each}", 1) for each in range(n)], n))
            store.set("port", str(port))  # last: `init` forgets what ranks have said
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = store.get("port").decode()

    def leave(self) -> None:
        """After Horovod was shut down."""
        if self._rendezvous is not None:
            self._rendezvous.stop()


def synchronize(handle: int, case: Case) -> None:
    """hvd.synchronize, which would ask as often as it can: with naps of `POLL_S` (see open_mpi.py)."""
    deadline_s = time.monotonic() + PATIENCE.total_seconds()
    while not hvd.poll(handle):
        if time.monotonic() > deadline_s:
            raise PeerLost(f"Horovod has not summed within {PATIENCE.total_seconds():g} s")
        time.sleep(POLL_S * dilation(case))
    hvd.synchronize(handle)


class Horovod(PlainAllReduce):
    """Horovod's allreduce over Gloo in cycles as long as by default, then torch.optim."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        self._of_horovodrun = RankOfHorovod(rank, case, addresses, HOROVOD_CYCLE_MS)
        hvd.init()
        self._parameters = torch.nn.Parameter(torch.zeros(case.numel))
        self._optimizer = torch.optim.RMSprop([self._parameters], lr=7e-4)
        self._case, self._step = case, 0

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        self._parameters.grad = gradient.clone()
        synchronize(hvd.allreduce_async_(self._parameters.grad, name="gradient", op=hvd.Average), self._case)
        self._optimizer.step()
        self._step += 1
        return Receipt(True, self._step)

    def close(self) -> None:
        hvd.shutdown()
        self._of_horovodrun.leave()


class RpcServer:
    """The batch-updating parameter server of PyTorch's RPC tutorial: one future that all workers' calls wait for."""

    the: RpcServer

    def __init__(self, case: Case) -> None:
        self._parameters = torch.nn.Parameter(torch.zeros(case.numel))
        self._parameters.grad = torch.zeros(case.numel)
        self._optimizer = torch.optim.RMSprop([self._parameters], lr=7e-4)
        self._lock, self._updated, self._arrived, self._workers = threading.Lock(), Future(), 0, case.workers

    @staticmethod
    @rpc.functions.async_execution
    def update(gradient: Tensor) -> Future:
        server = RpcServer.the
        with server._lock:
            server._parameters.grad += gradient
            server._arrived += 1
            updated = server._updated
            if server._arrived == server._workers:
                server._parameters.grad /= server._workers
                server._optimizer.step()
                server._optimizer.zero_grad(set_to_none=False)
                server._arrived, server._updated = 0, Future()
                updated.set_result(server._parameters.detach().clone())
        return updated


def rpc_options(case: Case) -> rpc.TensorPipeRpcBackendOptions:
    threads = max(16, case.workers)
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=threads,
        rpc_timeout=120,
        _transports=["uv"],
        _channels=["basic"],
        init_method=f"tcp://{os.environ['MASTER_ADDR']}:{PORT}",
    )


def serve_rpc(server: int, case: Case, addresses: Addresses) -> None:
    meet(server, case, addresses)
    RpcServer.the = RpcServer(case)
    rpc.init_rpc("server", rank=0, world_size=1 + case.workers, rpc_backend_options=rpc_options(case))
    rpc.shutdown()


class RpcWorker:
    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        meet(rank, case, addresses)
        options = rpc_options(case)
        rpc.init_rpc(f"worker{rank}", rank=1 + rank, world_size=1 + case.workers, rpc_backend_options=options)
        self._parameters, self._case, self._step = torch.zeros(case.numel), case, 0

    def pull(self) -> Pull:
        if self._step >= self._case.last_step:
            raise RunStopped("measured")
        return Pull(self._parameters, self._step, 0)

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        self._parameters = rpc.rpc_sync("server", RpcServer.update, args=(gradient,))
        self._step += 1
        return Receipt(True, self._step)

    def close(self) -> None:
        rpc.shutdown()


PEERS = {
    "torch all_reduce": Others(join=PlainAllReduce),
    "torch DDP": Others(join=DataParallel),
    **({"Horovod": Others(join=Horovod)} if hvd else {}),
    **({"Open MPI": Others(join=OpenMpi), "Open MPI ring": Others(join=OpenMpiRing)} if found() else {}),
    "torch RPC server": Others(join=RpcWorker, serve=serve_rpc),
}
"""Name of the row → exchange."""
