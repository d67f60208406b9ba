"""A link that its flows share evenly (processor sharing), each flow with a ceiling of its own."""

from __future__ import annotations

import heapq
import math
from typing import Any


class SharedLink:
    """Every active flow moves at min(ceiling, capacity / flows) bytes/s; flows may begin at any time.

    All flows move at the same rate, so "bytes that a flow has had since time 0" is one number for the link, and a flow
    ends when that number has grown by its size: O(log flows) an event, however many there are.

    Args:
        bytes_per_s: capacity of the link.
        ceiling_bytes_per_s: what the other end of each flow can do.
    """

    def __init__(self, bytes_per_s: float, ceiling_bytes_per_s: float) -> None:
        self._capacity, self._ceiling = bytes_per_s, ceiling_bytes_per_s
        self._now_s = self._each = 0.0
        self._flows = self._begun = 0
        self._ends: list[tuple[float, int, int, Any]] = []

    @property
    def rate_bytes_per_s(self) -> float:
        """What each flow gets now."""
        return min(self._ceiling, self._capacity / max(1, self._flows))

    @property
    def flows(self) -> int:
        """Active ones."""
        return self._flows

    def begin(self, now_s: float, size_bytes: float, what: Any, count: int = 1) -> None:
        """`count` equal flows of `size_bytes` each begin; they end together."""
        self._advance(now_s)
        self._begun += 1
        self._flows += count
        heapq.heappush(self._ends, (self._each + size_bytes, self._begun, count, what))

    def next_end_s(self) -> float:
        """When the next flow ends if nothing else begins; infinity without one."""
        if not self._ends:
            return math.inf
        return self._now_s + max(0.0, self._ends[0][0] - self._each) / self.rate_bytes_per_s

    def end_next(self) -> Any:
        """Go to the end of that flow; what it carried."""
        self._now_s, (self._each, _, count, what) = self.next_end_s(), heapq.heappop(self._ends)
        self._flows -= count
        return what

    def _advance(self, now_s: float) -> None:
        self._each += (now_s - self._now_s) * self.rate_bytes_per_s if self._flows else 0.0
        self._now_s = now_s
