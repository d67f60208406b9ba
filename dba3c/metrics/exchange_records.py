"""From what an exchange says of itself to lines in this process's metrics file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dba3c.metrics import registry as metric_registry
from dba3c.metrics.writer import MetricsWriter


def to_server_records(metrics: MetricsWriter) -> Callable[[dict[str, Any]], None]:
    """An ``on_report`` that writes the figures the registry knows, the time by section and the seconds they are of."""
    known = metric_registry.of_kind("server")

    def report(figures: dict[str, Any]) -> None:
        values = {name: value for name, value in figures.items() if name in known}
        metrics.record_server(figures["step"], values, figures.get("sections_s"), window_s=figures.get("window_s"))

    return report


def to_event_records(metrics: MetricsWriter) -> Callable[[dict[str, Any]], None]:
    """An ``on_event`` that writes one line for people."""

    def tell(event: dict[str, Any]) -> None:
        metrics.record_event(event["event"], event["message"], event.get("step"))

    return tell
