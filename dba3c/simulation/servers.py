"""Discrete events of sharded parameter servers; the protocol is param_servers' (client.py, server.py, cut_through.py).

With even shards every server sees the same bytes at the same times, so one server stands for all k of them: its link in
(gradients) and its link out (parameters), each shared by the workers' flows, while a worker's own link is shared by its
k flows. That keeps a step of 4,096 workers at O(n log n).

1. a worker computes; if a newer version is known by then it drops its gradient, else it pushes M/k to every server;
2. the g-th complete slice of this version commits it: every shard tells shard 0 (one message for each gradient and
   shard, served one after the other), shard 0 tells all;
3. with backup workers, or asynchronously: the shard averages and steps, then sends the version to all (to its worker);
   without: it has streamed the version out while the gradients came in, and only the seal is missing (cut-through).

On the host of a colocated server a push that came too late and the server's parameters share the link out; everybody
waits for that server's slice.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dba3c.simulation.cluster import WARM_UP_STEPS, Cluster, Outcome, Setup, Work
from param_servers.servers.step_commits import GIVEN_AHEAD

SLICE_CHUNKS, LEAST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = 16, 16_384, 262_144
"""In which pieces cut-through passes a slice on. The servers' parts are finer (64, of 4 KB at least), but a process
wakes up for several: with those, 107 of results/cluster's 119 rows are within 10 % and the mean error is 5.0 %, with
these 109 and 4.4 %."""


class ServerSimulation:
    """Runs `steps` steps. `times_s` [rows, n] float64: compute time of worker w on version v."""

    def __init__(self, cluster: Cluster, work: Work, setup: Setup, times_s: NDArray[np.float64]) -> None:
        self.cluster, self.work, self.setup, self._times_s = cluster, work, setup, times_s
        self._asynchronous = setup.exchange == "async"
        self._cut_through = setup.exchange == "servers" and not setup.backup and setup.cut_through
        size = self._slice_bytes = work.model_bytes * (1 / setup.servers)
        self._chunk_bytes = min(size, LARGEST_CHUNK_BYTES, max(LEAST_CHUNK_BYTES, size / SLICE_CHUNKS))
        self._to_chief_s = cluster.latency_s if setup.servers > 1 else 0.0
        self._ingress, self._egress = self._link(), self._link()
        self._queue: list[tuple[float, int, Callable[[float, int, int], None], int, int]] = []
        """(when, in which order of those at once, what happens, to which worker, of which version)."""
        self._order = self.version = self.dropped = self._arrived = 0
        self._busy_until_s = 0.0
        """When shard 0 has read all messages so far."""
        self._first_chunk_s = 0.0
        """When the slowest push of this version has brought its first chunk."""
        self._beside = 0
        """Pushes that it found on the link, itself included."""
        n = setup.workers
        self._working_on = [0] * n
        self._received = [0] * n
        self._sent = [0] * n
        """Newest version that has been sent to each worker."""
        self._ahead = [0] * n
        self._idle = [False] * n
        self.commits_s: list[float] = []

    def _link(self) -> SharedLink:
        """One direction of a server's."""
        n, k, rate = self.setup.workers, self.setup.servers, self.cluster.tensor_bytes_per_s
        ceiling = rate / k
        if self.setup.colocated and self._cut_through and n + k > 2:
            # Both directions carry the server's slices and the own worker's at once.
            rate *= (n - 1) / (n + k - 2) if n > 1 else 1.0
        return SharedLink(rate, ceiling)

    def run(self, steps: int) -> Outcome:
        """Until `steps` commits."""
        apart_s = self._slice_bytes / self.cluster.tensor_bytes_per_s if self._asynchronous else 0.0
        for worker in range(self.setup.workers):  # where nothing else parts them, as the first parameters reach them
            self._compute(worker * apart_s, worker, 0)
        while len(self.commits_s) < steps:
            ends_in_s, ends_out_s = self._ingress.next_end_s(), self._egress.next_end_s()
            next_s = self._queue[0][0] if self._queue else math.inf
            if next_s <= min(ends_in_s, ends_out_s):
                time_s, _, happen, worker, version = heapq.heappop(self._queue)
                happen(time_s, worker, version)
            elif ends_in_s <= ends_out_s:
                workers, version = self._ingress.end_next()
                for worker in workers:
                    self._slice_complete(ends_in_s, worker, version)
            else:
                workers, version = self._egress.end_next()
                for worker in workers:
                    self._later(ends_out_s + self.cluster.latency_s, self._take, worker, version)
        warm_up = WARM_UP_STEPS * (self.setup.workers if self._asynchronous else 1)
        return Outcome(np.array(self.commits_s), self.setup.gradients, self.dropped, self.work.data_points, warm_up)

    def _later(self, time_s: float, happen: Callable[[float, int, int], None], worker: int, version: int) -> None:
        self._order += 1
        heapq.heappush(self._queue, (time_s, self._order, happen, worker, version))

    # -- workers -------------------------------------------------------------------------------------------------

    def _compute(self, now_s: float, worker: int, version: int) -> None:
        self._working_on[worker], self._idle[worker], self._ahead[worker] = version, False, 0
        # asynchronous versions grow by one for each worker's gradient
        row = (version // self.setup.workers if self._asynchronous else version) % len(self._times_s)
        self._later(now_s + float(self._times_s[row, worker]), self._computed, worker, version)

    def _computed(self, now_s: float, worker: int, version: int) -> None:
        self._idle[worker] = True
        if self._received[worker] > version and not self._asynchronous:
            self.dropped += 1
            self._compute(now_s, worker, self._received[worker])
        else:
            self._later(now_s + self.cluster.latency_s, self._push, worker, version)

    def _take(self, now_s: float, worker: int, version: int) -> None:
        """A version has arrived at a worker, which begins with it unless it is still computing."""
        self._received[worker] = max(self._received[worker], version)
        if self._idle[worker] and version > self._working_on[worker]:
            self._compute(now_s, worker, version)

    # -- the server ----------------------------------------------------------------------------------------------

    def _push(self, now_s: float, worker: int, version: int) -> None:
        """A slice begins to arrive. One of an older version is late, and takes no bytes: its worker mostly knows of the
        newer one before it pushes (in truth one that began within a latency of the commit sends them)."""
        if version < self.version and not self._asynchronous:
            self.dropped += 1
            if self._sent[worker] < self.version:
                self._later(now_s, self._asked, worker, version)
            return
        if self.setup.colocated and worker == 0:
            self._slice_complete(now_s, worker, version)
            return
        self._ingress.begin(now_s, self._slice_bytes, [worker], version)
        share = 0.0 if self.setup.colocated else self._chunk_bytes / self._ingress.rate_bytes_per_s
        if now_s + share >= self._first_chunk_s:
            self._first_chunk_s, self._beside = now_s + share, self._ingress.flows

    def _slice_complete(self, now_s: float, worker: int, version: int) -> None:
        if not self._asynchronous:
            if version < self.version:  # it was late, and was told so by the newer version
                self.dropped += 1
                return
            self._arrived += 1
            self.dropped += self._arrived > self.setup.gradients  # complete, but not among the first g
        told_s = now_s + self._to_chief_s
        self._busy_until_s = max(self._busy_until_s, told_s) + self.cluster.message_s * self.setup.servers
        if self._asynchronous:
            self._busy_until_s += self._update_s(self._slice_bytes)  # one update after the other
        if self._asynchronous or self._arrived == self.setup.gradients:
            self._later(self._busy_until_s + self._to_chief_s, self._commit, worker, self.version)

    def _commit(self, now_s: float, worker: int, _: int) -> None:
        """Every shard hears of the commit; the next version is made, and sent or sealed."""
        self.version += 1
        self.commits_s.append(now_s)
        everybody = range(self.setup.workers)
        if self._asynchronous:
            self._send(now_s, [worker])
        elif self._cut_through:
            self._sent = [self.version] * self.setup.workers
            arrives_s = self._passed_on_s(now_s) + self.cluster.latency_s
            for each in everybody:
                self._later(arrives_s, self._take, each, self.version)
        else:
            made_s = now_s + self._update_s(self._slice_bytes)
            late_bytes = self._late_bytes(now_s)
            self._send(made_s, [each for each in everybody if self._ahead[each] < GIVEN_AHEAD], late_bytes)
        self._arrived, self._first_chunk_s = 0, 0.0

    def _asked(self, now_s: float, worker: int, _: int) -> None:
        self._send(now_s, [worker])

    def _late_bytes(self, now_s: float) -> float:
        """By which each flow out of a colocated server is behind, since a late push of its host shares the link: k−1
        flows beside its own n−1, all as fast."""
        n, k = self.setup.workers, self.setup.servers
        if not self.setup.colocated or n == 1:
            return 0.0
        return self._ingress.left_bytes(now_s, k) * (k - 1) / (n - 1)

    def _send(self, now_s: float, workers: Sequence[int], late_bytes: float = 0.0) -> None:
        """The newest parameters leave the server for these workers, side by side."""
        for worker in workers:
            self._sent[worker] = self.version
            self._ahead[worker] += 1
        remote = [worker for worker in workers if not (self.setup.colocated and worker == 0)]
        if len(remote) < len(workers):
            self._later(now_s, self._take, 0, self.version)
        if remote:
            self._egress.begin(now_s, self._slice_bytes + late_bytes, remote, self.version)

    def _passed_on_s(self, now_s: float) -> float:
        """Cut-through: when the last byte of the next version has left, `now_s` being the commit.

        It leaves as the slowest worker's bytes come in, chunk by chunk. Unfair links make that worker slower at first,
        as far as others send at the same time; a straggler has the link to itself.
        """
        n, k, rate = self.setup.workers, self.setup.servers, self.cluster.tensor_bytes_per_s
        update_s, flows = self._update_s(self._slice_bytes), n
        if self.setup.colocated:  # nothing leaves before the first chunk is there: until then gradients have it all
            flows = n - 1
            if not flows:
                return now_s + update_s
            rate = min(rate / k, rate * (n - 1) / (n + k - 2) / flows)
        else:
            rate = min(rate / k, rate / flows)
            now_s += self._chunk_bytes / rate + self._update_s(self._chunk_bytes)
        out_s = max(self._slice_bytes / rate, update_s)
        lost_s = self.cluster.overlap_lost * out_s * (1 - 1 / max(1, self._beside))
        # during the round to shard 0 the last chunk is already on its way
        return max(self._first_chunk_s + out_s, now_s - 2 * self._to_chief_s) + lost_s

    def _update_s(self, size_bytes: float) -> float:
        """To sum the gradients of a slice and to step its optimizer."""
        summed_s = self.setup.gradients * size_bytes / self.cluster.aggregate_bytes_per_s
        return summed_s + size_bytes / self.cluster.apply_bytes_per_s


# -- links that flows share --------------------------------------------------------------------------------------------


class SharedLink:
    """Flows share it evenly (processor sharing) and may begin at any time.

    Each moves at min(ceiling, capacity / flows) bytes/s. So "bytes that a flow has had since time 0" is one number for
    the link, and a flow ends when that number has grown by its size: O(log flows) an event, however many there are.

    Args:
        bytes_per_s: capacity of the link.
        ceiling_bytes_per_s: what the other end of each flow can do.
    """

    def __init__(self, bytes_per_s: float, ceiling_bytes_per_s: float) -> None:
        self._capacity, self._ceiling = bytes_per_s, ceiling_bytes_per_s
        self._now_s = self._each = 0.0
        self.flows = self._begun = 0
        self._ends: list[tuple[float, int, Sequence[int], int]] = []

    @property
    def rate_bytes_per_s(self) -> float:
        """What a flow gets now."""
        return min(self._ceiling, self._capacity / max(1, self.flows))

    def begin(self, now_s: float, size_bytes: float, workers: Sequence[int], version: int) -> None:
        """A flow of `size_bytes` for each of these workers; they end together."""
        self._advance(now_s)
        self._begun += 1
        self.flows += len(workers)
        heapq.heappush(self._ends, (self._each + size_bytes, self._begun, workers, version))

    def next_end_s(self) -> float:
        """When the next flows end if nothing else begins; infinity without any."""
        if not self._ends:
            return math.inf
        return self._now_s + max(0.0, self._ends[0][0] - self._each) / self.rate_bytes_per_s

    def end_next(self) -> tuple[Sequence[int], int]:
        """Go to the end of those flows; whose they were, and of which version."""
        self._now_s, (self._each, _, workers, version) = self.next_end_s(), heapq.heappop(self._ends)
        self.flows -= len(workers)
        return workers, version

    def left_bytes(self, now_s: float, workers: int) -> float:
        """Of the flow that is the farthest from its end, among those of the first `workers`."""
        self._advance(now_s)
        return max((end - self._each for end, _, which, _ in self._ends if min(which) < workers), default=0.0)

    def _advance(self, now_s: float) -> None:
        self._each += (now_s - self._now_s) * self.rate_bytes_per_s if self.flows else 0.0
        self._now_s = now_s
