"""All-reduce over Horovod, under `horovodrun` or mpirun. Horovod is dormant (its last version is 0.28.1 of 2023) and
is built from source: see launch/install/horovod.sh."""

import os
from collections.abc import Callable

from torch import Tensor

from param_servers.allreduce.collective import describe_lost, first_line
from param_servers.errors import ConfigError, PeerLost


class HorovodCollective:
    """See `Collective`. One for each process.

    Raises:
        ConfigError: Horovod is not installed, or was built against another torch.
        PeerLost: not all ranks came.
    """

    def __init__(self, *, step_timeout_s: float = 60.0, join_timeout_s: float = 300.0) -> None:
        # Horovod reads these once, when it starts. Without them it would wait for a silent rank for ever.
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(step_timeout_s // 2))))
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(step_timeout_s))))
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(1, int(join_timeout_s))))
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")  # milliseconds; the default of 1 is added to every step
        try:
            import horovod.torch as hvd
        except (ImportError, OSError) as error:
            raise ConfigError(
                f"collective_backend horovod cannot be loaded ({first_line(error)}): run launch/install/horovod.sh"
            ) from error
        self._hvd = hvd
        self.rank, self.size, self.lost = 0, 0, set[int]()
        self._guarded(hvd.init)
        self.rank, self.size = hvd.rank(), hvd.size()

    def all_reduce_sum_(self, tensor: Tensor) -> None:
        """See `Collective`."""
        self._guarded(lambda: self._hvd.allreduce_(tensor, op=self._hvd.Sum, name="param_servers.sum"))

    def broadcast_(self, tensor: Tensor, root: int = 0) -> None:
        """See `Collective`."""
        self._guarded(lambda: self._hvd.broadcast_(tensor, root, name=f"param_servers.broadcast.{tensor.dtype}"))

    def close(self) -> None:
        """See `Collective`."""
        self._hvd.shutdown()

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (self._hvd.HorovodInternalError, RuntimeError, ValueError) as error:
            raise PeerLost(describe_lost((), self.size, first_line(error))) from error
