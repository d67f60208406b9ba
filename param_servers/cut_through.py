"""Passing an update on while its gradients still arrive, where every worker's gradient is needed (no backup workers).

As soon as a chunk of the slice is here from all workers it is averaged, stepped and streamed out as part of the next
version, so that pushing and pulling overlap: a step takes max(M/B, nM/(kB)) on the wire instead of twice that. It is a
bet: the frame counts only when SEALED follows, after shard 0 has committed exactly this set on every shard. When the
bet is lost (a worker died halfway, a gradient was rejected somewhere), the shard goes back to where it was, the rest
of the frame is sent void, and ABORTED follows; the step then goes on without betting. Optimizers here work element by
element, so chunks change nothing in the result.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from param_servers.accumulator import is_finite
from param_servers.handshake import Peer, Role
from param_servers.hub import Hub
from param_servers.links import Frame
from param_servers.messages import Code, Dtype, Header, Kind, Row
from param_servers.optimizers import State
from param_servers.shard import Shard, as_bytes

STALLED_S = 0.1
"""A worker that has sent nothing for so long is not waited for by reading less from others."""


class Arriving(NamedTuple):
    """One worker's gradient slice, perhaps not complete yet."""

    row: Row
    gradient: Tensor
    """[n] float32."""
    complete: bool


class CutThrough:
    """One bet: version `step` + 1 made from these gradients.

    Args:
        shard: its parameters are stepped chunk by chunk.
        version: header of the PARAMETERS to be (term, next step, sender).
        members: every worker's gradient.
        learning_rate: of this step.
    """

    def __init__(self, shard: Shard, hub: Hub, version: Header, members: list[Arriving], learning_rate: float) -> None:
        self._shard, self._hub, self._learning_rate = shard, hub, learning_rate
        members = sorted(members)
        self.rows = [member.row for member in members]
        self._gradients = [member.gradient for member in members]
        self._arriving = {member.row.worker for member in members if not member.complete}
        self._low, self._low_s = 0, 0.0
        self._sent_low, self._sent_low_s = 0, 0.0
        self._ready = 0
        self._before = shard.published()
        self._undo: list[State] = []
        self._out = torch.empty(shard.numel)
        header = version._replace(kind=Kind.PARAMETERS, code=Code.STREAMED, dtype=Dtype.FLOAT32)
        self._frames = {}
        for row in self.rows:
            frame = Frame(header, as_bytes(self._out), available=0)
            if hub.stream(Peer(Role.WORKER, row.worker), frame):
                self._frames[row.worker] = frame

    @property
    def streamed(self) -> set[int]:
        """Workers that were sent the frame on the link they have now."""
        return set(self._frames)

    def completed(self, worker: int, gradient: Tensor) -> bool:
        """A worker's slice has arrived whole; False when the bet is on another one (a repetition, or an older push)."""
        self._arriving.discard(worker)
        return any(gradient is expected for expected in self._gradients)

    def left(self, worker: int) -> bool:
        """A worker's link is gone; False when its gradient will never be complete and the bet is lost."""
        self._frames.pop(worker, None)
        return worker not in self._arriving

    def advance(self) -> bool:
        """Step what is here from all; False when the bet is lost because the mean is not finite."""
        have = self._bytes_from_all() // 4
        done = len(self._undo)
        while done < len(self._shard.chunks) and self._shard.chunks[done].stop <= have:
            chunk = self._shard.chunks[done]
            state = self._shard.chunk_state(done)
            if not is_finite(self._shard.mean_of_chunk(done, self._gradients)):
                return False
            self._undo.append(state)
            self._shard.step_chunk(done, self._learning_rate)
            self._out[chunk].copy_(self._shard.parameters[chunk])
            done += 1
            self._ready = 4 * chunk.stop
        return True

    def even_out(self, now_s: float) -> None:
        """Let the slowest worker catch up: the kernel's shares are unfair, and a chunk is worth what its last part is.

        Whoever is more than a chunk ahead is not read from, unless the slowest does not move at all.
        """
        have = {}
        for worker in self._arriving:
            receiving = self._hub.receiving(Peer(Role.WORKER, worker))
            have[worker] = receiving[1] if receiving is not None else 0
        low = min(have.values(), default=0)
        if low > self._low:
            self._low, self._low_s = low, now_s
        ahead = 4 * self._shard.chunks[0].stop if now_s - self._low_s < STALLED_S else 4 * self._shard.numel
        for worker, count in have.items():
            self._hub.pause(Peer(Role.WORKER, worker), count > low + ahead)
        sent_low = min((frame.sent for frame in self._frames.values()), default=0)
        if sent_low > self._sent_low:
            self._sent_low, self._sent_low_s = sent_low, now_s
        stalled = now_s - self._sent_low_s >= STALLED_S
        self._release(self._ready if stalled else min(self._ready, sent_low + 4 * self._shard.chunks[0].stop))

    def over(self) -> None:
        """Read from everybody again, and send what is left."""
        for row in self.rows:
            self._hub.pause(Peer(Role.WORKER, row.worker), False)
        self._release(4 * self._shard.numel)

    def settle(self, members: list[Row]) -> bool:
        """Shard 0 commits `members`: whether this is the set that was bet on, and then the shard holds the result."""
        if [tuple(row[:3]) for row in sorted(members)] != [tuple(row[:3]) for row in self.rows] or not self.advance():
            return False
        if len(self._undo) < len(self._shard.chunks):
            return False
        self._shard.publish(self._out)
        return True

    def abort(self, answer: Header) -> None:
        """Undo everything; the frames are finished, void, and `answer` (ABORTED) follows them."""
        self.over()
        for index, state in enumerate(self._undo):
            self._shard.restore_chunk(index, self._before, state)
        self._shard.publish(self._before)
        for worker in self._frames:
            self._hub.send(Peer(Role.WORKER, worker), answer)

    def _bytes_from_all(self) -> int:
        have = 4 * self._shard.numel
        for worker in self._arriving:
            receiving = self._hub.receiving(Peer(Role.WORKER, worker))
            have = min(have, receiving[1] if receiving is not None else 0)
        return have

    def _release(self, available: int) -> None:
        for worker, frame in self._frames.items():
            if available > frame.available:
                frame.available = available
                self._hub.grown(Peer(Role.WORKER, worker))
