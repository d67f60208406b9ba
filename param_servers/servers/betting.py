"""A shard's bets (cut_through.py): when one is placed, on which gradients, and how it ends. One at a time."""

from typing import NamedTuple

from torch import Tensor

from param_servers.servers.accumulator import Accumulator
from param_servers.servers.cut_through import Arriving, CutThrough
from param_servers.servers.shard import Shard
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header, Kind, Row


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
