"""Many values made one record: by each metric's reduction, and with null where a number is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat

from dba3c.metrics import registry as metric_registry
from dba3c.metrics.registry import Metric


class Window:
    """Several steps' values made one record, each by its metric's reduction. Values that are not finite are counted."""

    def __init__(self, metrics: Mapping[str, Metric], kind: metric_registry.Kind) -> None:
        self._metrics = metrics
        self._kind = kind
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.window_s: float | None = None
        """Seconds that the values say they are of, None when they do not."""
        self._values: dict[str, float] = {}
        self._terms: dict[str, int] = {}  # finite values seen, by name
        self._not_finite: dict[str, int] = {}
        self._sections_s: dict[str, float] = {}

    def add(
        self, values: Mapping[str, SupportsFloat], sections_s: Mapping[str, float], window_s: float | None = None
    ) -> None:
        """Raises UserError when a name is unknown (nearest ones named)."""
        self.count += 1
        if window_s is not None:
            self.window_s = (self.window_s or 0.0) + window_s
        for name, given in values.items():
            metric = self._metrics.get(name) or metric_registry.find(self._kind, name)
            value = float(given)
            if not math.isfinite(value):
                self._not_finite[name] = self._not_finite.get(name, 0) + 1
                continue
            terms = self._terms.get(name, 0)
            self._terms[name] = terms + 1
            self._values[name] = value if terms == 0 else _reduced(metric.reduction, self._values[name], value)
        for name, seconds in sections_s.items():
            self._sections_s[name] = self._sections_s.get(name, 0.0) + seconds

    def record(self) -> dict[str, Any]:
        """{name: value, count, sections_s, not_finite}; a name that only had non-finite values is null."""
        record: dict[str, Any] = {"count": self.count}
        for name, value in self._values.items():
            mean = self._metrics[name].reduction in ("mean", "norm")
            record[name] = short(value / self._terms[name] if mean else value)
        for name in self._not_finite:
            record.setdefault(name, None)
        if self._not_finite:
            record["not_finite"] = dict(self._not_finite)
        record["sections_s"] = {name: round(seconds, 6) for name, seconds in self._sections_s.items()}
        return record


def _reduced(reduction: str, before: float, value: float) -> float:
    """One more value into an accumulated one; means are kept as sums."""
    if reduction == "min":
        return min(before, value)
    if reduction == "max":
        return max(before, value)
    return value if reduction == "last" else before + value


def short(value: float) -> float | int:
    """Seven significant digits, which is all a float32 has; whole numbers exactly."""
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.7g}")


def finite_or_null(values: Mapping[str, float]) -> dict[str, Any]:
    """The values with null for those that JSON has no number for, and their count."""
    bad = {name: 1 for name, value in values.items() if not math.isfinite(value)}
    record: dict[str, Any] = {name: None if name in bad else short(float(value)) for name, value in values.items()}
    return {**record, "not_finite": bad} if bad else record
