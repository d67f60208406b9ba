"""The figures of a replica, about once a second; like a server's (`report.Reporter`), but for the time."""

import time
from collections.abc import Callable
from typing import Any

from param_servers.replica import Replica

EVERY_S = 1.0
OnReport = Callable[[dict[str, Any]], None]


def unread(report: dict[str, Any]) -> None:
    """An OnReport that nobody reads."""


class ReplicaReport:
    """Counts, and calls `on_report` with what was counted since the last time.

    Keys: step, term, data_points_total, active_workers, num_gradients, commits, stale, rejected, update_norm (L2, of
    one update, the first since the last report), first_moment_norm and second_moment_norm (L2, where the optimizer
    keeps them), learning_rate, collective_s and applying_s (seconds of the sums and of the updates; parts of what the
    process spends in `push`, so not sections of its time beside that), window_s.
    """

    def __init__(self, replica: Replica, on_report: OnReport, *, workers: int = 1) -> None:
        self.active_workers = self.num_gradients = workers
        self._replica, self._on_report = replica, on_report
        self._is_read = on_report is not unread
        self._start()

    def _start(self) -> None:
        self.commits = self.stale = self.rejected = 0
        self.collective_s = self.applying_s = 0.0
        self._since_s = time.monotonic()
        if self._is_read:
            self._replica.shard.measure_next_update()

    def maybe(self, last: bool = False) -> None:
        """Report if it is time, or if this is the `last` one, and something was committed."""
        window_s = time.monotonic() - self._since_s
        if not self._is_read or not self.commits or (window_s < EVERY_S and not last):
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
                "update_norm": replica.shard.update_norm,
                **replica.shard.moment_norms(),
                "learning_rate": replica.learning_rate,
                "collective_s": self.collective_s,
                "applying_s": self.applying_s,
                "window_s": window_s,
            }
        )
        self._start()
