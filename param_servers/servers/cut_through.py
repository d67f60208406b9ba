"""Passing an update on while its gradients still arrive, where every worker's gradient is needed (no backup workers).

As soon as a part of the slice is here from all workers it is averaged, stepped and streamed out as part of the next
version, so that pushing and pulling overlap: a step takes max(M/B, nM/(kB)) on the wire instead of twice that. (8
workers and servers at 100 Mbit/s, 6.7 and 1.33 MB: 1.11 and 1.27 times that bound; 1.20 and 1.43 without.) It is
ahead of shard 0's decision: the frame counts only when SEALED follows, after shard 0 has committed exactly this set on
every shard. Where it does not (a worker died halfway, a gradient was rejected somewhere), the shard goes back to where
it was, the rest of the frame is sent void, and ABORTED follows; the step then goes on without cutting through.
Optimizers here work element by element, so parts change nothing in the result.
"""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from param_servers.layout import as_bytes, floats
from param_servers.servers.shard import PART_MULTIPLE, Accumulator, Elements, Shard
from param_servers.wire.frames import Frame
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Code, Header, Kind, Row, Version

PARTS, LEAST_PART = 64, 1024
"""A part is worth its work when it is a 64th of the slice and 4 KB."""
LEAST_BYTES = 256 << 10
"""Of all slices of a step: below that the wire is no match for the second message that this costs each worker."""
LEADS, LEAST_LEAD, SHORT_SLICE = 32, 16 << 10, 128 << 10
"""See `lead_bytes`."""
WINDOWS, SHORT_WINDOW, ALL_WINDOWS, LEAST_WINDOW = 32, 16 << 10, 384 << 10, 11 << 10
"""A 32nd of the slice, but 16 KB (shorter ones mean more packets), together no more than 384 KB, but 11 KB each."""


def is_worthwhile(slice_bytes: int, workers: int) -> bool:
    """Whether passing on saves more than it costs: a shard of a small model has nothing to overlap."""
    return slice_bytes * workers >= LEAST_BYTES


def window_bytes(slice_bytes: int, workers: int) -> int:
    """Receive window of a worker's link that makes all gradients arrive evenly.

    What a server can pass on is what the slowest of its workers has sent. With the kernel's own, growing buffers some
    links run ahead by whole slices, the queue before the server overflows and what is lost there is sent again much
    later. With a small receive window on every link all have the same share of the wire, and nothing is lost.
    (8 workers, 1.33 MB, 8 servers at 100 Mbit/s: 3.1 times the bound became 1.2.)
    """
    return max(LEAST_WINDOW, min(max(SHORT_WINDOW, slice_bytes // WINDOWS), ALL_WINDOWS // workers))


def lead_bytes(slice_bytes: int, workers: int) -> int:
    """How far a worker's slice may be ahead of the slowest one; further, its link is not read, and it waits.

    Whoever has computed first sends first, and from 35 workers on windows cannot be so small that the others get their
    share: the wire was full, but nothing could be passed on. (64 workers, 4 servers, 1 Gbit/s, time-dilated: 2.7 MB
    took 1.21 to 1.29 times the bound and take 1.11, 6.7 MB 1.18 and 1.09.) The windows of those that are read must fill
    the wire: with fewer workers they might not (8 workers and a server: 3 % slower), so there nobody waits; nor with
    short slices (64 servers beside as many workers: 1 % slower).
    """
    if workers * LEAST_WINDOW <= ALL_WINDOWS or slice_bytes < SHORT_SLICE:
        return slice_bytes
    return max(LEAST_LEAD, slice_bytes // LEADS)


@dataclass
class Ahead:
    """An update that is made and sent before it is committed."""

    of: Version
    """What the shard held; the update makes the next one."""
    rows: list[Row]
    """The pushes of which it is made, in ascending worker order."""
    gradients: list[Tensor]
    """Their slices [n] float32, in that order."""
    arriving: set[Peer]
    """Whose slice is not complete."""
    learning_rate: float
    out: Tensor
    """[n], what is sent."""
    frames: dict[Peer, Frame]
    """To whom, on the links that there are."""
    done: int = 0
    """Elements that are stepped."""

    def __post_init__(self) -> None:
        self.elements: list[Elements] = [gradient.numpy() for gradient in self.gradients]


class CutThrough:
    """At most one update ahead; where one had to be taken back, no other is begun on the same version.

    Args:
        index: of the shard.
        shard: its tensors, between two versions while an update is ahead.
        hub: where slices arrive from and versions go.
        accumulator: gradients that are complete.
        all_needed: workers whose gradients every step waits for (no backup workers); 0: never go ahead.
        hold_s: at most so long a worker that is far ahead waits for the slowest.
    """

    def __init__(
        self, index: int, shard: Shard, hub: Hub, accumulator: Accumulator, all_needed: int, hold_s: float
    ) -> None:
        self._index, self._shard, self._hub = index, shard, hub
        self._accumulator, self._all_needed = accumulator, all_needed
        self._least = max(LEAST_PART, shard.numel // PARTS)
        self._hold_s = hold_s
        self._hold_until_s = 0.0
        """Of the update that is ahead; from then on nobody waits for the slowest."""
        self._lead_bytes = lead_bytes(4 * shard.numel, all_needed)
        self._ahead: Ahead | None = None
        self._taken_back = (0, -1)

    @property
    def open(self) -> bool:
        """Whether an update is being passed on: then the shard's tensors are between two versions."""
        return self._ahead is not None

    def advance(
        self,
        version: Version,
        workers: dict[int, int],
        incoming: dict[Peer, deque[Tensor]],
        data_points: int,
        now_s: float,
    ) -> None:
        """Pass on what can be; to be called after each poll.

        Args:
            version: that the shard holds.
            workers: incarnation of each connected worker.
            incoming: where slices [n] go that are arriving; of each worker the last one may be incomplete.
            data_points: so far; the learning rate depends on them.
            now_s: on any clock.
        """
        if self._ahead is None and self._all_needed and self._taken_back != version:
            self._hold_until_s = now_s + self._hold_s
            self._begin(version, workers, incoming, data_points)
        if self._ahead is not None:
            here_bytes = self._here_bytes(self._ahead)
            self._step_what_is_here(self._ahead, here_bytes)
            self._hold(here_bytes, now_s)
            self._release(self._ahead, self._ahead.done)

    def _begin(
        self, version: Version, workers: dict[int, int], incoming: dict[Peer, deque[Tensor]], data_points: int
    ) -> None:
        """Go ahead once all gradients of this step that are needed, and no others, are complete or arriving."""
        if len(workers) != self._all_needed or len(incoming) + self._accumulator.count < self._all_needed:
            return
        rows, gradients, arriving = [], [], set[Peer]()
        for worker, incarnation in sorted(workers.items()):
            peer, held = Peer(Role.WORKER, worker), self._accumulator.held(worker, incarnation)
            if held is not None:
                rows.append(Row(worker, incarnation, held.sequence))
                gradients.append(held.gradient)
                continue
            header, gradient = self._hub.receiving(peer), incoming[peer][-1] if peer in incoming else None
            if header is None or gradient is None:
                return
            if (header[0].term, header[0].step) != version:
                return
            rows.append(Row(worker, incarnation, header[0].sequence))
            gradients.append(gradient)
            arriving.add(peer)
        if not arriving:
            return  # nothing is left to overlap: the commit comes sooner than what it would cost to tell it apart
        self._shard.keep()
        learning_rate, out = self._shard.learning_rate(data_points), floats(self._shard.numel)
        self._ahead = Ahead(version, rows, gradients, arriving, learning_rate, out, self._streams(version, rows, out))

    def _streams(self, version: Version, rows: list[Row], out: Tensor) -> dict[Peer, Frame]:
        term, step = version[0], version[1] + 1
        header = Header(Kind.PARAMETERS, self._index, 0, term, step, code=Code.STREAMED)
        frames, first = {}, self._index % len(rows)  # each server begins with another worker
        for row in rows[first:] + rows[:first]:
            worker, frame = Peer(Role.WORKER, row.worker), Frame(header, as_bytes(out), available=0)
            if self._hub.stream(worker, frame):
                frames[worker] = frame
        return frames

    def _here_bytes(self, ahead: Ahead) -> dict[Peer, int]:
        """Of each slice that is not complete."""
        received = {worker: self._hub.receiving(worker) for worker in ahead.arriving}
        return {worker: 0 if here is None else here[1] for worker, here in received.items()}

    def _hold(self, here_bytes: dict[Peer, int], now_s: float) -> None:
        """Who is far ahead waits for the slowest; not for long, or all would be late with it."""
        slowest = min(here_bytes.values(), default=0)
        far = [worker for worker, here in here_bytes.items() if here > slowest + self._lead_bytes]
        self._hub.hold(far if now_s < self._hold_until_s else [])

    def _step_what_is_here(self, ahead: Ahead, here_bytes: dict[Peer, int]) -> None:
        """Step what is here from all. Whether it is finite shows when a slice is whole; until then nothing counts."""
        numel = self._shard.numel
        have = min([4 * numel, *here_bytes.values()]) // 4
        if have < numel:
            have -= have % PART_MULTIPLE
            if have - ahead.done < self._least:
                return
        out, stepped = ahead.out.numpy(), self._shard.parameters.numpy()
        for part in self._shard.parts(ahead.done, have):
            self._shard.update_part(part, ahead.elements, ahead.learning_rate)
            out[part] = stepped[part]
            ahead.done = part.stop

    def _release(self, ahead: Ahead, elements: int) -> None:
        for worker, frame in ahead.frames.items():
            self._hub.allow(worker, frame, 4 * elements)

    # -- how it ends ---------------------------------------------------------------------------------------------

    def completed(self, worker: int, gradient: Tensor) -> None:
        """A worker's slice has arrived whole; if it is another one (a repetition, an older push), go back."""
        ahead = self._ahead
        if ahead is not None:
            ahead.arriving.discard(Peer(Role.WORKER, worker))
            if not any(gradient is expected for expected in ahead.gradients):
                self.abort()

    def left(self, worker: int) -> None:
        """A worker's link is gone; if its slice will never be complete, go back."""
        ahead, peer = self._ahead, Peer(Role.WORKER, worker)
        if ahead is not None:
            ahead.frames.pop(peer, None)
            if peer in ahead.arriving:
                self.abort()

    def settle(self, members: list[Row]) -> set[int] | None:
        """Shard 0 commits `members`: who was streamed what the shard now holds; None: it is still to be made."""
        ahead = self._ahead
        if ahead is None:
            return None
        same = [row[:3] for row in sorted(members)] == [row[:3] for row in ahead.rows]
        if same:
            self._step_what_is_here(ahead, self._here_bytes(ahead))
        if not same or ahead.done < self._shard.numel:
            self.abort()
            return None
        self._ahead = None
        self._shard.publish(ahead.out)
        self._shard.committed()
        self._release(ahead, self._shard.numel)
        return {worker.rank for worker in ahead.frames}

    def abort(self) -> None:
        """Go back to the version that the shard held; nothing happens where no update is ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._taken_back = ahead.of
            self._hub.hold([])
            self._release(ahead, self._shard.numel)  # a frame that has begun has to end
            self._shard.go_back()
            header = Header(Kind.ABORTED, self._index, 0, ahead.of[0], ahead.of[1] + 1)
            for worker in ahead.frames:
                self._hub.send(worker, header)
