"""The exchange of a single process: each gradient is an update."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import LastStepsLost, RunBroken, RunStopped
from param_servers.exchange import OnEvent, OnReport, Pull, Receipt, ShouldStop, never, unread
from param_servers.layout import FlatLayout
from param_servers.replica import Replica, ReplicaReport
from param_servers.servers.accumulator import is_usable

MOST_REJECTED_STEPS = 100
"""After so many gradients in a row that were not finite, the run is broken: the next one would not be finite either."""


class LocalExchange:
    """`GradientExchange` without a network. Goes on from the newest checkpoint, if there is one.

    Args:
        layout, initial_parameters, optimizer_config, exchange_config: see `Replica`.
        checkpoint_dir, checkpoint_extra, on_event: see `Replica`.
        should_stop: asked before each step.
        on_report: called about once a second with the figures of `ReplicaReport`.
    """

    def __init__(
        self,
        *,
        layout: FlatLayout,
        initial_parameters: Tensor,
        optimizer_config: OptimizerConfig,
        exchange_config: ExchangeConfig | None = None,
        checkpoint_dir: Path | None = None,
        should_stop: ShouldStop = never,
        checkpoint_extra: Callable[[], dict[str, Any]] = dict,
        on_report: OnReport = unread,
        on_event: OnEvent = unread,
    ) -> None:
        settings = exchange_config or ExchangeConfig()
        self.replica = Replica(
            layout, initial_parameters, optimizer_config, settings, checkpoint_dir, checkpoint_extra, on_event
        )
        self.replica.restore_newest()
        self._should_stop, self._report = should_stop, ReplicaReport(self.replica, on_report)
        self._rejected_in_a_row = 0

    def pull(self) -> Pull:
        """See `GradientExchange.pull`."""
        reason = self._should_stop(self.replica.step, self.replica.data_points)
        if reason is not None:
            raise how_it_ended(reason, self.replica.finish())
        return self.replica.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`."""
        reason = refusal(gradient, step, self.replica)
        if reason == "non-finite":
            self._report.rejected += 1
            self._rejected_in_a_row += 1
            check_rejected(self._rejected_in_a_row, self.replica.step)
        elif not reason:
            self._rejected_in_a_row = 0
            start_s = time.perf_counter()
            self.replica.commit(gradient, data_points)
            self._report.applying_s += time.perf_counter() - start_s
            self.replica.checkpoint_when_due()
            self._report.commits += 1
        self._report.maybe()
        return Receipt(not reason, self.replica.step, reason)

    def close(self) -> None:
        """See `GradientExchange.close`."""
        self._report.maybe(last=True)
        self.replica.finish()  # of a process that ends otherwise than asked (its environment failed) no step is lost
        self.replica.close()


def how_it_ended(reason: str, lost: str) -> RunStopped | LastStepsLost:
    """What a run ends with that was asked to, and whose `Replica.finish` said what is lost."""
    return LastStepsLost(f"{reason}; {lost}") if lost else RunStopped(reason)


def refusal(gradient: Tensor, step: int, replica: Replica) -> str:
    """Why a gradient may not enter the replica's next update, "" if it may."""
    if step != replica.step:
        return "stale"
    if gradient.shape != (replica.layout.numel,):
        return "wrong-length"
    return "" if is_usable(gradient) else "non-finite"


def check_rejected(steps_in_a_row: int, step: int) -> None:
    """Raise RunBroken when no gradient has been finite for too long."""
    if steps_in_a_row >= MOST_REJECTED_STEPS:
        raise RunBroken(f"no gradient of step {step} was finite, {steps_in_a_row} times in a row: it has diverged")
