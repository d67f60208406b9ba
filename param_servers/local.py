"""The exchange of a single process: each gradient is an update."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import SupportsFloat

from torch import Tensor

from param_servers.accumulator import is_finite
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import RunBroken, RunStopped
from param_servers.exchange import Pull, Receipt
from param_servers.layout import FlatLayout
from param_servers.replica import OnEvent, Replica, silent

MOST_REJECTED_STEPS = 100
"""After so many gradients in a row that were not finite, the run is broken: the next one would not be finite either."""
OnReport = Callable[[int, Mapping[str, SupportsFloat]], None]
"""(step, values): active_workers, commits, stale, rejected, data_points_total, learning_rate of one step."""
ShouldStop = Callable[[int, int], str | None]
"""(step, data points) -> why the run should end now, or None."""


def unreported(step: int, values: Mapping[str, SupportsFloat]) -> None:
    """An OnReport that nobody reads."""


def never(step: int, data_points: int) -> str | None:
    """A ShouldStop that lets the run go on."""
    return None


class LocalExchange:
    """GradientExchange without a network.

    Args: as `Replica`, and
        should_stop: asked before each step.
        on_report: told of each step.
    """

    def __init__(
        self,
        layout: FlatLayout,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig | None = None,
        *,
        checkpoint_dir: Path | None = None,
        should_stop: ShouldStop = never,
        on_report: OnReport = unreported,
        on_event: OnEvent = silent,
    ) -> None:
        config = exchange_config or ExchangeConfig()
        self.replica = Replica(layout, initial_parameters, optimizer_config, config, checkpoint_dir, on_event)
        self.replica.restore_newest()
        self._should_stop, self._on_report = should_stop, on_report
        self._rejected = 0

    def pull(self) -> Pull:
        """See `GradientExchange.pull`."""
        reason = self._should_stop(self.replica.step, self.replica.data_points)
        if reason is not None:
            self.replica.finish()
            raise RunStopped(reason)
        return self.replica.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`."""
        replica = self.replica
        reason = refusal(gradient, step, replica)
        if reason == "non-finite":
            self._rejected += 1
            check_rejected(self._rejected, replica.step)
        elif not reason:
            self._rejected = 0
            learning_rate = replica.learning_rate
            replica.commit(gradient, data_points)
            replica.checkpoint_when_due()
            self._on_report(replica.step, report(replica, learning_rate, commits=1))
        return Receipt(not reason, replica.step, reason)

    def close(self) -> None:
        """See `GradientExchange.close`."""
        self.replica.close()


def refusal(gradient: Tensor, step: int, replica: Replica) -> str:
    """Why a gradient may not enter the replica's next update, "" if it may."""
    if step != replica.step:
        return "stale"
    if gradient.shape != (replica.layout.numel,):
        return "wrong-length"
    return "" if is_finite(gradient) else "non-finite"


def check_rejected(steps_in_a_row: int, step: int) -> None:
    """Raise RunBroken when no gradient has been finite for too long."""
    if steps_in_a_row >= MOST_REJECTED_STEPS:
        raise RunBroken(
            f"no gradient of step {step} was finite, {steps_in_a_row} times in a row: training has diverged"
        )


def report(
    replica: Replica, learning_rate: float, *, commits: int, workers: int = 1, stale: int = 0, rejected: int = 0
) -> dict[str, float]:
    """One step's numbers for OnReport."""
    counts = {"active_workers": workers, "commits": commits, "stale": stale, "rejected": rejected}
    return {**counts, "data_points_total": replica.data_points, "learning_rate": learning_rate}
