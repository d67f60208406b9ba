"""Our own all-reduce over what a launcher brings, MPI and Horovod, started by the harness as those by themselves are.

As many ranks as hosts share two cores here, so that what waits takes naps where hosts of their own would not (see
open_mpi.py). What both sleep for, and Horovod's cycle, are as long as in a run, in the cluster's time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from open_mpi import RankOfMpirun, dilation
from open_mpi import found as found_mpi
from other_systems import RankOfHorovod, hvd, synchronize
from torch import Tensor

from param_servers.allreduce.collective import Collective
from param_servers.allreduce.exchange import AllReduceExchange
from param_servers.allreduce.mpi_horovod import HorovodCollective, MpiCollective
from param_servers.benchmarks.exchange import Case, Others
from param_servers.config import CollectiveBackend, ExchangeConfig, OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.exchange import Pull, Receipt
from param_servers.layout import FlatLayout

JOIN_TIMEOUT_S = 900.0
Addresses = Callable[[int], str]


class OverMpi:
    """`AllReduceExchange` over mpirun's ranks."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        self._of_mpirun, self._case, self._step = RankOfMpirun(rank, case), case, 0
        config = config_of(case, "mpi")
        try:
            collective = MpiCollective(config)
            collective.spin_s, collective.nap_s = dilation(case) * collective.spin_s, dilation(case) * collective.nap_s
            self._exchange = exchange_over(collective, case, config)
        except ParamServersError:  # the next row is not to find what this one has left
            self._of_mpirun.leave(done=False)
            raise

    def pull(self) -> Pull:
        pull = self._exchange.pull()
        self._step = pull.step
        return pull

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        return self._exchange.push(gradient, step, data_points)

    def close(self) -> None:
        self._exchange.close()
        self._of_mpirun.leave(done=self._step >= self._case.last_step)


class OverHorovod:
    """`AllReduceExchange` over Horovod's ranks."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        self._of_horovodrun = RankOfHorovod(rank, case, addresses, HorovodCollective.cycle_ms)
        config = config_of(case, "horovod")
        collective = _Napping(config)
        collective.case = case
        self._exchange = exchange_over(collective, case, config)

    def pull(self) -> Pull:
        return self._exchange.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        return self._exchange.push(gradient, step, data_points)

    def close(self) -> None:
        self._exchange.close()
        self._of_horovodrun.leave()


class _Napping(HorovodCollective):
    case: Case

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        self._guarded(lambda: synchronize(self._begin_sum(tensor), self.case))


def config_of(case: Case, backend: CollectiveBackend) -> ExchangeConfig:
    return ExchangeConfig(
        exchange="allreduce",
        collective_backend=backend,
        num_workers=case.workers,
        step_timeout_s=case.step_timeout_s,
        join_timeout_s=JOIN_TIMEOUT_S,
        checkpoint_every_steps=0,
    )


def exchange_over(collective: Collective, case: Case, config: ExchangeConfig) -> AllReduceExchange:
    return AllReduceExchange(
        collective=collective,
        layout=FlatLayout.of({"w": (case.numel,)}),
        initial_parameters=torch.zeros(case.numel),
        optimizer_config=OptimizerConfig(optimizer="rmsprop"),
        exchange_config=config,
        should_stop=lambda step, data_points: "measured" if step >= case.last_step else None,
    )


LAUNCHED = {
    **({"all-reduce (MPI)": Others(join=OverMpi)} if found_mpi() else {}),
    **({"all-reduce (Horovod)": Others(join=OverHorovod)} if hvd else {}),
}
"""Name of the row → exchange."""
