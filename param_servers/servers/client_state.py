"""What a worker knows of its servers: which parameters are complete here, and what became of the last push."""

from dataclasses import dataclass

from torch import Tensor

from param_servers.errors import BadMessage
from param_servers.exchange import Pull, Receipt
from param_servers.layout import ShardPlan, floats
from param_servers.wire.messages import REASONS, Code, Header, Kind, Version

NOTHING: Version = (0, -1)


@dataclass
class Push:
    """The gradient that waits for its answer."""

    sequence: int
    version: Version
    gradient: Tensor
    data_points: int
    receipt: Receipt | None = None


class ClientState:
    """Two buffers: `current` is what `pull` returned and stays constant; new slices arrive in the other one, and when
    all shards have delivered the same (term, step) the buffers change places.

    Args:
        plan: layout and cuts.
        asynchronous: a push is answered by name or by a newer term; in synchronous mode by the next version, too.
    """

    def __init__(self, plan: ShardPlan, asynchronous: bool) -> None:
        self.plan = plan
        self.current_version = NOTHING
        self.newest = NOTHING
        """The newest version that any shard has named."""
        self.push: Push | None = None
        self.asked_for = NOTHING
        """`newest` when parameters were last asked for."""
        self._asynchronous = asynchronous
        self._current = floats(plan.layout.numel)
        self._arriving = floats(plan.layout.numel)
        self._data_points = 0
        self._slots: list[Version | None] = [None] * plan.num_shards
        self._begun: list[Version] = [NOTHING] * plan.num_shards
        """The version whose parameters began to arrive last: they overwrite what arrived before."""
        self._unfinished = [0] * plan.num_shards
        """Frames of parameters that have begun to arrive and whose end has not been handled."""
        self._coming = NOTHING
        """The newest version whose parameters have begun to arrive."""
        self._sequence = 0

    # -- parameters ----------------------------------------------------------------------------------------------

    def slot(self, shard: int, header: Header) -> Tensor:
        """Where the parameters that begin to arrive from a shard belong: [n].

        Raises:
            BadMessage: not parameters of this shard's length.
        """
        part = self.plan.slice_of(shard)
        if header.kind != Kind.PARAMETERS:
            raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
        if header.length != 4 * (part.stop - part.start):
            raise BadMessage(f"parameters of {header.length} bytes for a slice of {4 * (part.stop - part.start)}")
        self._slots[shard] = None
        self._begun[shard] = (header.term, header.step)
        self._unfinished[shard] += 1
        self._coming = max(self._coming, (header.term, header.step))
        if header.code != Code.STREAMED:  # those do not exist before they are sealed
            self.heard(header)
        return self._arriving[part]

    def arrived(self, shard: int, header: Header) -> None:
        self._unfinished[shard] -= 1
        if header.code != Code.STREAMED:
            self._complete(shard, header)

    def decided(self, shard: int, header: Header) -> None:
        """The parameters that a shard has streamed are committed (SEALED) or void (ABORTED)."""
        if header.kind == Kind.SEALED:
            self._complete(shard, header)
            self.heard(header)
        else:
            self._coming = self.asked_for = NOTHING

    def _complete(self, shard: int, header: Header) -> None:
        if self._unfinished[shard] or self._begun[shard] != (header.term, header.step):
            return  # another frame has begun to arrive in the same poll: perhaps this version again, into this buffer
        self._slots[shard] = (header.term, header.step)
        if (header.term, header.step) >= self.newest:
            self._data_points = header.data_points

    def lost(self, shard: int) -> None:
        """The link to a shard broke; what was arriving is void."""
        self._slots[shard] = None
        self._begun[shard], self._unfinished[shard] = NOTHING, 0
        self._coming = self.asked_for = NOTHING

    @property
    def must_ask(self) -> bool:
        """A newer version exists that nobody is sending."""
        return self._coming < self.newest and self.asked_for < self.newest

    def take(self) -> Pull | None:
        """The newest parameters if they are complete here; they stay constant until a newer version is taken."""
        first = self._slots[0]
        if first is not None and first >= self.newest and all(slot == first for slot in self._slots):
            self._current, self._arriving = self._arriving, self._current
            self.current_version = first
            self._slots = [None] * len(self._slots)
        if self.current_version == NOTHING or self.current_version < self.newest:
            return None
        return Pull(self._current, self.current_version[1], self._data_points)

    # -- pushes --------------------------------------------------------------------------------------------------

    @property
    def open_push(self) -> Push | None:
        """The push that has no answer yet."""
        return self.push if self.push is not None and self.push.receipt is None else None

    def begin_push(self, gradient: Tensor, step: int, data_points: int) -> Push:
        """Number a push. Its receipt is set at once when it cannot count, as a second one of a version cannot."""
        self._sequence += 1
        version = (self.current_version[0], step)
        before = self.push.receipt if self.push is not None and self.push.version == version else None
        counted = before is not None and before.accepted
        self.push = push = Push(self._sequence, version, gradient, data_points)
        if gradient.shape != (self.plan.layout.numel,):
            push.receipt = Receipt(False, self.newest[1], "wrong-length")
        elif counted or version != self.current_version or self._outdates(self.newest, version):
            push.receipt = Receipt(False, self.newest[1], "stale")
        return push

    def heard(self, header: Header) -> None:
        """A PARAMETERS, STEP or RECEIPT header: what exists, and perhaps the answer to the push."""
        version = (header.term, header.step)
        self.newest = max(self.newest, version)
        push = self.open_push
        if push is None:
            return
        if header.sequence == push.sequence and header.code != Code.NONE:
            push.receipt = Receipt(header.code == Code.ACCEPTED, header.step, REASONS.get(header.code, "rejected"))
        elif self._outdates(version, push.version):
            push.receipt = Receipt(False, header.step, "stale")

    def _outdates(self, known: Version, pushed: Version) -> bool:
        """Whether a push can no longer count, as version `known` exists. Nobody answers one of an earlier term."""
        return known[0] > pushed[0] or (not self._asynchronous and known > pushed)
