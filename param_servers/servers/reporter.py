"""What a server tells about itself while it runs: figures, about once a second."""

import time
from collections.abc import Callable
from typing import Any

from param_servers.exchange import OnReport
from param_servers.servers.chief import Chief
from param_servers.servers.shard_node import ShardNode
from param_servers.wire.frames import Event
from param_servers.wire.hub import Hub

EVERY_S = 1.0
"""Between two reports."""


class Reporter:
    """Calls `on_report` with counts since the last report and with what is now.

    Keys: step, term, data_points_total, active_workers, num_gradients (shard 0), commits, stale, rejected,
    update_norm (L2, of one update, the first since the last report; this shard's), first_moment_norm and
    second_moment_norm (L2, this shard's; where the optimizer keeps them), learning_rate, bytes_sent, bytes_received,
    staleness_mean/min/max (shard 0, async), sections_s {aggregating, applying, waiting, other}, window_s.
    """

    def __init__(self, node: ShardNode, hub: Hub, chief: Chief | None, on_report: OnReport) -> None:
        self._node, self._hub, self._chief, self._on_report = node, hub, chief, on_report
        self._waiting_s = 0.0
        self._since_s = time.monotonic()
        node.shard.measure_next_update()
        self._counts = self._now()

    def timed(self, poll: Callable[[float], list[Event]], timeout_s: float) -> list[Event]:
        """Poll, and count the time as waiting."""
        start_s = time.perf_counter()
        events = poll(timeout_s)
        self._waiting_s += time.perf_counter() - start_s
        return events

    def maybe(self, now_s: float) -> None:
        """Report if it is time and something was committed; of whole versions only."""
        due = now_s - self._since_s >= EVERY_S and self._node.commits > self._counts["commits"]
        if due and not self._node.cut_through.open:
            self._send(now_s)

    def close(self) -> None:
        """The last report, unless the end came between two versions."""
        if self._node.commits > self._counts["commits"] and not self._node.cut_through.open:
            self._send(time.monotonic())

    def _send(self, now_s: float) -> None:
        node, counts = self._node, self._now()
        change = {name: counts[name] - self._counts[name] for name in counts}
        window_s = now_s - self._since_s
        sections_s = {name: change.pop(name) for name in ("aggregating", "applying")}
        sections_s["waiting"] = self._waiting_s
        sections_s["other"] = max(0.0, window_s - sum(sections_s.values()))
        report: dict[str, Any] = {
            "step": node.step,
            "term": node.term,
            "data_points_total": node.data_points,
            "active_workers": len(node.workers),
            **change,
            "update_norm": node.shard.update_norm,
            **node.shard.moment_norms(),
            "learning_rate": node.shard.learning_rate(node.data_points),
            "sections_s": sections_s,
            "window_s": window_s,
        }
        if self._chief is not None:
            report["num_gradients"] = self._chief.coordinator.steps.num_gradients
            delays, self._chief.staleness = self._chief.staleness, []
            if delays:
                report |= {"staleness_mean": sum(delays) / len(delays)}
                report |= {"staleness_min": min(delays), "staleness_max": max(delays)}
        node.shard.measure_next_update()
        self._counts, self._since_s, self._waiting_s = counts, now_s, 0.0
        self._on_report(report)

    def _now(self) -> dict[str, float]:
        node = self._node
        sent, received = self._hub.bytes_moved
        return {
            "commits": node.commits,
            "stale": node.stale,
            "rejected": node.rejected,
            "bytes_sent": sent,
            "bytes_received": received,
            "aggregating": node.shard.aggregating_s,
            "applying": node.shard.applying_s,
        }
