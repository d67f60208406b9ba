"""The figures of a replica, about once a second; the same keys as a server's (`report.Reporter`)."""

import time
from collections.abc import Callable
from typing import Any

import torch

from param_servers.replica import Replica

EVERY_S = 1.0
OnReport = Callable[[dict[str, Any]], None]


def unread(report: dict[str, Any]) -> None:
    """An OnReport that nobody reads."""


class ReplicaReport:
    """Counts, and calls `on_report` with what was counted since the last time.

    Keys: step, term, data_points_total, active_workers, num_gradients, commits, stale, rejected, update_norm (L2, of
    all updates since the last report), first_moment_norm and second_moment_norm (L2, where the optimizer keeps them),
    learning_rate, sections_s {waiting (the collective), applying}, window_s.
    """

    def __init__(self, replica: Replica, on_report: OnReport, *, workers: int = 1) -> None:
        self.active_workers = self.num_gradients = workers
        self._replica, self._on_report = replica, on_report
        self._before = replica.shard.parameters.clone() if on_report is not unread else None
        self._start()

    def _start(self) -> None:
        self.commits = self.stale = self.rejected = 0
        self.waiting_s = self.applying_s = 0.0
        self._since_s = time.monotonic()

    def maybe(self, last: bool = False) -> None:
        """Report if it is time, or if this is the `last` one, and something was committed."""
        window_s = time.monotonic() - self._since_s
        if self._before is None or not self.commits or (window_s < EVERY_S and not last):
            return
        replica = self._replica
        self._on_report(
            {
                "step": replica.step,
                "term": replica.term,
                "data_points_total": replica.data_points,
                "active_workers": self.active_workers,
                "num_gradients": self.num_gradients,
                "commits": self.commits,
                "stale": self.stale,
                "rejected": self.rejected,
                "update_norm": torch.dist(replica.shard.parameters, self._before).item(),
                **replica.shard.moment_norms(),
                "learning_rate": replica.learning_rate,
                "sections_s": {"waiting": self.waiting_s, "applying": self.applying_s},
                "window_s": window_s,
            }
        )
        self._before.copy_(replica.shard.parameters)
        self._start()
