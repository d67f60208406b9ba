"""Links that flows share, and the links of all servers in one direction."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

SERVERS_TOLD_APART = 4
"""Of unfair links. Early at one of more servers helps a worker no more: it waits for its last slice."""


class SharedLink:
    """Flows share it by weight (weighted processor sharing) and may begin at any time.

    The mean flow moves at min(ceiling, capacity / flows) bytes/s, each at that times its weight / mean weight. So
    "bytes that a flow of weight 1 has had since time 0" is one number for the link, and a flow ends when that number
    has grown by its size / weight: O(log flows) an event, however many there are.

    Args:
        bytes_per_s: capacity of the link.
        ceiling_bytes_per_s: what the other end of each flow can do.
    """

    def __init__(self, bytes_per_s: float, ceiling_bytes_per_s: float) -> None:
        self._capacity, self._ceiling = bytes_per_s, ceiling_bytes_per_s
        self._now_s = self._each = self._weight = 0.0
        self._flows = self._begun = 0
        self._ends: list[tuple[float, int, float, int, Any]] = []

    @property
    def rate_bytes_per_s(self) -> float:
        """What a flow of mean weight gets now."""
        return min(self._ceiling, self._capacity / max(1, self._flows))

    @property
    def flows(self) -> int:
        """Active ones."""
        return self._flows

    def begin(self, now_s: float, size_bytes: float, what: Any, count: int = 1, weight: float = 1.0) -> None:
        """`count` equal flows of `size_bytes` each begin; they end together."""
        self._advance(now_s)
        self._begun += 1
        self._flows += count
        self._weight += count * weight
        heapq.heappush(self._ends, (self._each + size_bytes / weight, self._begun, weight, count, what))

    def next_end_s(self) -> float:
        """When the next flow ends if nothing else begins; infinity without one."""
        if not self._ends:
            return math.inf
        return self._now_s + max(0.0, self._ends[0][0] - self._each) / self._rate_of_weight_1()

    def end_next(self) -> Any:
        """Go to the end of that flow; what it carried."""
        self._now_s, (self._each, _, weight, count, what) = self.next_end_s(), heapq.heappop(self._ends)
        self._flows -= count
        self._weight = self._weight - count * weight if self._flows else 0.0
        return what

    def _rate_of_weight_1(self) -> float:
        return self.rate_bytes_per_s * self._flows / self._weight

    def _advance(self, now_s: float) -> None:
        self._each += (now_s - self._now_s) * self._rate_of_weight_1() if self._flows else 0.0
        self._now_s = now_s


class ServerLinks:
    """One direction of the links of k servers: a worker has a flow with each, and is done when the last has ended.

    Where all flows are alike one link stands for all k. Unfair links are told apart: a flow's weight is lognormal,
    drawn for every transfer and server.

    Args:
        bytes_per_s, ceiling_bytes_per_s: of each link (`SharedLink`).
        spread: standard deviation of the logarithm of a flow's weight; 0: all alike.
    """

    def __init__(self, bytes_per_s: float, ceiling_bytes_per_s: float, servers: int, spread: float, seed: int) -> None:
        told_apart = min(servers, SERVERS_TOLD_APART) if spread else 1
        self._links = [SharedLink(bytes_per_s, ceiling_bytes_per_s) for _ in range(told_apart)]
        self._spread, self._random = spread, np.random.default_rng(seed)
        self._ended: Counter[tuple[int, int]] = Counter()

    @property
    def rate_bytes_per_s(self) -> float:
        """What a flow gets now, on average."""
        return self._links[0].rate_bytes_per_s

    @property
    def flows(self) -> int:
        """Of a server, now."""
        return self._links[0].flows

    def begin(self, now_s: float, size_bytes: float, workers: Sequence[int], version: int) -> None:
        """A slice of `size_bytes` between each of these workers and every server."""
        if not self._spread:
            self._links[0].begin(now_s, size_bytes, (workers, version), count=len(workers))
            return
        for link in self._links:
            weights = self._random.lognormal(0.0, self._spread, len(workers))
            for worker, weight in zip(workers, weights.tolist(), strict=True):
                link.begin(now_s, size_bytes, ((worker,), version), weight=weight)

    def next_end_s(self) -> float:
        """When the next flow ends if nothing else begins."""
        return min(link.next_end_s() for link in self._links)

    def end_next(self) -> list[tuple[int, int]]:
        """Go to the end of that flow; the (worker, version) that have all their slices with it."""
        workers, version = min(self._links, key=SharedLink.next_end_s).end_next()
        if len(self._links) == 1:
            return [(worker, version) for worker in workers]
        (worker,) = workers
        self._ended[worker, version] += 1
        if self._ended[worker, version] < len(self._links):
            return []
        del self._ended[worker, version]
        return [(worker, version)]
