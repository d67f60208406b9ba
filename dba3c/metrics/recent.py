"""Sums over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class RecentSums:
    """Amounts that came in, by name, summed over the last `horizon_s` seconds."""

    def __init__(self, horizon_s: float = 10.0) -> None:
        self.horizon_s = self._least_s = horizon_s
        self._entries: deque[tuple[float, float, Mapping[str, float]]] = deque()  # (end, beginning, amounts)
        self._sums: dict[str, float] = {}

    def add(self, time_s: float, amounts: Mapping[str, float], window_s: float = 0.0) -> None:
        """Amounts of the `window_s` seconds before `time_s`."""
        self.horizon_s = max(self._least_s, 3.0 * window_s)  # long windows need a longer look, while they are long
        self._entries.append((time_s, time_s - window_s, amounts))
        for name, amount in amounts.items():
            self._sums[name] = self._sums.get(name, 0.0) + amount
        self._forget_before(time_s - self.horizon_s)

    def _forget_before(self, time_s: float) -> None:
        while self._entries and self._entries[0][0] <= time_s:
            for name, amount in self._entries.popleft()[2].items():
                self._sums[name] -= amount
        if not self._entries:
            self._sums.clear()  # no rounding error is carried through an idle time

    def sums(self, now_s: float) -> dict[str, float]:
        """Sums of the horizon before `now_s`, by name."""
        self._forget_before(now_s - self.horizon_s)
        return {name: max(0.0, amount) for name, amount in self._sums.items()}

    def per_second(self, now_s: float, name: str) -> float:
        """The rate of one amount, from where the horizon's first window begins until `now_s`."""
        total = self.sums(now_s).get(name, 0.0)
        return total / max(1e-3, now_s - self._entries[0][1]) if total else 0.0
