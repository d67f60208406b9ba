"""Our own `AllReduceExchange` over what a launcher brings, MPI and Horovod, started by the harness like theirs alone.

As many ranks as hosts share two cores here, so that what waits takes naps where hosts of their own would not (see
open_mpi.py). What both sleep for, and Horovod's cycle, are as long as in a run, in the cluster's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from open_mpi import RankOfMpirun, dilation
from open_mpi import found as found_mpi
from other_systems import RankOfHorovod, hvd, synchronize
from torch import Tensor

from param_servers.allreduce.exchange import AllReduceExchange
from param_servers.allreduce.mpi_horovod import HorovodCollective, MpiCollective
from param_servers.benchmarks.exchange import Case, Others
from param_servers.config import CollectiveBackend, ExchangeConfig, OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.layout import FlatLayout

JOIN_TIMEOUT_S = 900.0
Addresses = Callable[[int], str]


class OverMpi(AllReduceExchange):
    """Over mpirun's ranks."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        self._of_mpirun, self._case = RankOfMpirun(rank, case), case
        config = config_of(case, "mpi")
        try:
            collective = MpiCollective(config)
            collective.spin_s, collective.nap_s = dilation(case) * collective.spin_s, dilation(case) * collective.nap_s
            super().__init__(collective=collective, exchange_config=config, **training(case))
        except ParamServersError:  # the next row is not to find what this one has left
            self._of_mpirun.leave(done=False)
            raise

    def close(self) -> None:
        done = self.replica.step >= self._case.last_step
        super().close()
        self._of_mpirun.leave(done)


class OverHorovod(AllReduceExchange):
    """Over Horovod's ranks."""

    def __init__(self, rank: int, case: Case, addresses: Addresses) -> None:
        self._of_horovodrun = RankOfHorovod(rank, case, addresses, HorovodCollective.cycle_ms)
        config = config_of(case, "horovod")
        collective = _Napping(config)
        collective.case = case
        super().__init__(collective=collective, exchange_config=config, **training(case))

    def close(self) -> None:
        super().close()
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


def training(case: Case) -> dict[str, Any]:
    """What an exchange is told beside its collective and configuration."""
    return {
        "layout": FlatLayout.of({"w": (case.numel,)}),
        "initial_parameters": torch.zeros(case.numel),
        "optimizer_config": OptimizerConfig(optimizer="rmsprop"),
        "should_stop": lambda step, data_points: "measured" if step >= case.last_step else None,
    }


LAUNCHED = {
    **({"all-reduce (MPI)": Others(join=OverMpi)} if found_mpi() else {}),
    **({"all-reduce (Horovod)": Others(join=OverHorovod)} if hvd else {}),
}
"""Name of the row → exchange."""
