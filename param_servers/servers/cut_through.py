"""Passing an update on while its gradients still arrive, where every worker's gradient is needed (no backup workers).

As soon as a part of the slice is here from all workers it is averaged, stepped and streamed out as part of the next
version, so that pushing and pulling overlap: a step takes max(M/B, nM/(kB)) on the wire instead of twice that. It is a
bet: the frame counts only when SEALED follows, after shard 0 has committed exactly this set on every shard. When the
bet is lost (a worker died halfway, a gradient was rejected somewhere), the shard goes back to where it was, the rest
of the frame is sent void, and ABORTED follows; the step then goes on without betting. Optimizers here work element by
element, so parts change nothing in the result.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from param_servers.layout import as_bytes
from param_servers.servers.accumulator import Accumulator
from param_servers.servers.shard import PART_MULTIPLE, Shard
from param_servers.wire.frames import Frame
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Code, Dtype, Header, Kind, Row

PARTS, LEAST_PART = 64, 1024
"""A part is worth its work when it is a 64th of the slice and 4 KB."""
LEAST_BYTES = 256 << 10
"""Of all slices of a step: below that the wire is no match for the second message that a bet costs each worker."""
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


class Arriving(NamedTuple):
    """One worker's gradient slice, perhaps not complete yet."""

    row: Row
    gradient: Tensor
    """[n] float32."""
    complete: bool


class CutThrough:
    """One bet: version `step` + 1 made from these gradients.

    Args:
        shard: its parameters are stepped part by part.
        version: header of the PARAMETERS to be (term, next step, sender).
        members: every worker's gradient.
        learning_rate: of this step.
    """

    def __init__(self, shard: Shard, hub: Hub, version: Header, members: list[Arriving], learning_rate: float) -> None:
        self._shard, self._hub, self._learning_rate = shard, hub, learning_rate
        members = sorted(members)
        self.rows = [member.row for member in members]
        self._gradients = [member.gradient for member in members]
        self._elements = [gradient.numpy() for gradient in self._gradients]
        self._arriving = {Peer(Role.WORKER, member.row.worker) for member in members if not member.complete}
        self._done = 0
        """Elements that are stepped."""
        self._least = max(LEAST_PART, shard.numel // PARTS)
        shard.keep()
        self._out = torch.empty(shard.numel)
        self._stepped, self._passed_on = shard.parameters.numpy(), self._out.numpy()
        header = version._replace(kind=Kind.PARAMETERS, code=Code.STREAMED, dtype=Dtype.FLOAT32)
        self._frames: dict[Peer, Frame] = {}
        first = version.sender % len(self.rows)  # each server begins with another worker
        for row in self.rows[first:] + self.rows[:first]:
            worker, frame = Peer(Role.WORKER, row.worker), Frame(header, as_bytes(self._out), available=0)
            if hub.stream(worker, frame):
                self._frames[worker] = frame

    @property
    def streamed(self) -> set[int]:
        """Workers that were sent the frame on the link they have now."""
        return {worker.rank for worker in self._frames}

    def completed(self, worker: int, gradient: Tensor) -> bool:
        """A worker's slice has arrived whole; False when the bet is on another one (a repetition, or an older push)."""
        self._arriving.discard(Peer(Role.WORKER, worker))
        return any(gradient is expected for expected in self._gradients)

    def left(self, worker: int) -> bool:
        """A worker's link is gone; False when its gradient will never be complete and the bet is lost."""
        peer = Peer(Role.WORKER, worker)
        self._frames.pop(peer, None)
        return peer not in self._arriving

    def advance(self) -> None:
        """Step what is here from all. Whether it is finite shows when a slice is whole; until then nothing counts."""
        have, numel = self._elements_from_all(), self._shard.numel
        if have < numel:
            have -= have % PART_MULTIPLE
            if have - self._done < self._least:
                return
        for part in self._shard.parts(self._done, have):
            self._shard.update_part(part, self._elements, self._learning_rate)
            self._passed_on[part] = self._stepped[part]
            self._done = part.stop
        self._release(self._done)

    def over(self) -> None:
        """Send what is left."""
        self._release(self._shard.numel)

    def settle(self, members: list[Row]) -> bool:
        """Shard 0 commits `members`: whether this is the set that was bet on, and then the shard holds the result."""
        if [tuple(row[:3]) for row in sorted(members)] != [tuple(row[:3]) for row in self.rows]:
            return False
        self.advance()
        if self._done < self._shard.numel:
            return False
        self._shard.publish(self._out)
        self._shard.committed()
        return True

    def abort(self, answer: Header) -> None:
        """Undo everything; the frames are finished, void, and `answer` (ABORTED) follows them."""
        self.over()
        self._shard.go_back()
        for worker in self._frames:
            self._hub.send(worker, answer)

    def _elements_from_all(self) -> int:
        have = 4 * self._shard.numel
        for worker in self._arriving:
            receiving = self._hub.receiving(worker)
            have = min(have, receiving[1] if receiving is not None else 0)
        return have // 4

    def _release(self, elements: int) -> None:
        for worker, frame in self._frames.items():
            if 4 * elements > frame.available:
                frame.available = 4 * elements
                self._hub.grown(worker)


class Version(NamedTuple):
    """What a shard holds."""

    term: int
    step: int


class Bets:
    """At most one open bet on the next version; a lost one is not placed again on the same version.

    Args:
        index: of the shard.
        shard: its tensors, between two versions while a bet is open.
        accumulator: gradients that are complete.
        all_needed: workers whose gradients every step waits for (no backup workers); 0: never bet.
    """

    def __init__(self, index: int, shard: Shard, accumulator: Accumulator, all_needed: int) -> None:
        self.hub: Hub
        self._index, self._shard, self._accumulator, self._all_needed = index, shard, accumulator, all_needed
        self._bet: CutThrough | None = None
        self._on = self._lost_on = Version(0, -1)

    @property
    def open(self) -> bool:
        """Whether an update is being passed on."""
        return self._bet is not None

    def advance(
        self, version: Version, workers: dict[int, int], incoming: dict[Peer, Tensor], data_points: int
    ) -> None:
        """Pass on what can be; to be called after each poll.

        Args:
            version: that the shard holds; the bet is on the next one.
            workers: incarnation of each connected worker.
            incoming: where the slice [n] goes that is arriving from a worker now.
            data_points: so far; the learning rate depends on them.
        """
        if self._bet is None and self._all_needed and self._lost_on != version:
            self._place(version, workers, incoming, data_points)
        if self._bet is not None:
            self._bet.advance()

    def _place(self, version: Version, workers: dict[int, int], incoming: dict[Peer, Tensor], data_points: int) -> None:
        """Bet once all gradients of this step that are needed, and no others, are complete or (some still) arriving."""
        if len(workers) != self._all_needed or len(incoming) + self._accumulator.count < self._all_needed:
            return
        members = []
        for worker, incarnation in workers.items():
            member = self._arriving(worker, incarnation, version, incoming.get(Peer(Role.WORKER, worker)))
            if member is None:
                return
            members.append(member)
        if all(member.complete for member in members):
            return  # nothing is left to overlap: the verdict comes sooner than what it would cost to tell it apart
        header = Header(Kind.PARAMETERS, self._index, 0, version.term, version.step + 1)
        learning_rate = self._shard.learning_rate(data_points)
        self._bet, self._on = CutThrough(self._shard, self.hub, header, members, learning_rate), version

    def _arriving(self, worker: int, incarnation: int, version: Version, gradient: Tensor | None) -> Arriving | None:
        held = self._accumulator.held(worker, incarnation)
        if held is not None:
            return Arriving(Row(worker, incarnation, held.sequence), held.gradient, True)
        receiving = self.hub.receiving(Peer(Role.WORKER, worker))
        if receiving is None or gradient is None or gradient.numel() != self._shard.numel:
            return None
        header = receiving[0]
        if (header.term, header.step) != version:
            return None
        return Arriving(Row(worker, incarnation, header.sequence), gradient, False)

    # -- how it ends ---------------------------------------------------------------------------------------------

    def completed(self, worker: int, gradient: Tensor) -> None:
        """A worker's slice has arrived whole: lost when the bet was on another one of its slices."""
        if self._bet is not None and not self._bet.completed(worker, gradient):
            self.abort()

    def left(self, worker: int) -> None:
        """A worker's link is gone: lost when its slice will never be complete."""
        if self._bet is not None and not self._bet.left(worker):
            self.abort()

    def settle(self, members: list[Row]) -> set[int] | None:
        """Shard 0 commits `members`: who was streamed what the shard now holds; None: no bet was on them."""
        if self._bet is not None and not self._bet.settle(members):
            self.abort()
        bet, self._bet = self._bet, None
        if bet is None:
            return None
        bet.over()
        return bet.streamed

    def abort_if_streamed_to(self, workers: set[int]) -> None:
        """These are given other parameters, which will lie where the streamed ones are arriving."""
        if self._bet is not None and workers & self._bet.streamed:
            self.abort()

    def abort_if_on(self, worker: int) -> None:
        """A worker's gradient must not count."""
        if self._bet is not None and any(row.worker == worker for row in self._bet.rows):
            self.abort()

    def abort(self) -> None:
        """Go back to the version that the shard held; nothing happens where no bet is open."""
        bet, self._bet = self._bet, None
        if bet is not None:
            self._lost_on = self._on
            bet.abort(Header(Kind.ABORTED, self._index, 0, self._on.term, self._on.step + 1))
