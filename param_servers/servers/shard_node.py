"""What every shard does with what it hears: takes gradient slices from workers, obeys shard 0, answers workers.

It talks through a hub and never blocks; shard 0 obeys its own chief through the same `obey`.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from param_servers.checkpoint.writer import CheckpointFiles
from param_servers.errors import BadMessage
from param_servers.layout import as_bytes
from param_servers.optim import State
from param_servers.servers.cut_through import CutThrough
from param_servers.servers.shard import Accumulator, Shard
from param_servers.servers.step_commits import Commit, Expel, Give, Order, Restore, Stop, WriteCheckpoint
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import (
    RECIPIENT,
    Code,
    Header,
    Kind,
    Row,
    bytes_of,
    check_data_points,
    control_payload,
    pack_rows,
    text_of,
    unpack_rows,
)

_FROM_SHARDS = {Kind.ARRIVED, Kind.WRITTEN}
_FROM_SHARD_0 = {Kind.COMMIT, Kind.GIVE, Kind.EXPEL, Kind.STOP, Kind.EXPELLED}


Tell = Callable[[Header, Row | dict[str, Any] | None], None]
"""How shard 0 is told what a shard has done: ARRIVED, with the row of a slice that is complete (mark NONE) or rejected;
READY; or WRITTEN, with the entry of a checkpoint's slice, or {"error": why there is none}."""


class ShardNode:
    """One shard among its peers.

    Args:
        index: which shard; 0 also announces new versions to workers that are not sent them.
        shard: its tensors.
        hub: the way to its peers.
        asynchronous: gradients of older versions count.
        checkpoints: where its slice is written and read.
        tell: how shard 0 is told.
        all_needed: workers whose gradients every step waits for (no backup workers), so that updates can be passed on
            while they arrive; 0: never.
        hold_s: see `CutThrough`.
    """

    def __init__(
        self,
        index: int,
        shard: Shard,
        hub: Hub,
        asynchronous: bool,
        checkpoints: CheckpointFiles,
        tell: Tell,
        all_needed: int = 0,
        hold_s: float = 0.0,
    ) -> None:
        self.index, self.shard = index, shard
        self.term = self.step = self.data_points = 0
        self.ended: tuple[str, bool] | None = None
        """(reason, failed) once the run is over."""
        self.commits = self.stale = self.rejected = 0
        self.workers: dict[int, int] = {}
        """Incarnation of each connected worker."""
        self._hub, self._checkpoints, self._tell, self._asynchronous = hub, checkpoints, tell, asynchronous
        self._accumulator = Accumulator(shard.numel, keeps_older=asynchronous)
        self._incoming: dict[Peer, deque[Tensor]] = {}
        """Where a worker's slices go that have begun to arrive and are not handled; only the last may be incomplete."""
        self._receipts: dict[int, tuple[int, int, Code]] = {}
        """Last decided push of each worker: (incarnation, sequence, answer)."""
        self.cut_through = CutThrough(index, shard, hub, self._accumulator, all_needed, hold_s)
        self._restoring: int | None = None
        """The term whose state is being loaded."""

    # -- links ---------------------------------------------------------------------------------------------------

    def joined(self, hello: Hello) -> None:
        self.workers[hello.rank] = hello.incarnation

    def left(self, worker: int) -> None:
        self.workers.pop(worker, None)
        self._incoming.pop(Peer(Role.WORKER, worker), None)
        self.cut_through.left(worker)

    def receive_into(self, peer: Peer, header: Header) -> memoryview:
        """A place for the payload of a frame, or BadMessage: nothing is allocated on a stranger's word."""
        if peer.role is Role.WORKER:
            return self._slice_for(peer, header)
        allowed = _FROM_SHARD_0 if peer.rank == 0 else _FROM_SHARDS
        return control_payload(header, allowed)

    def _slice_for(self, peer: Peer, header: Header) -> memoryview:
        if header.kind != Kind.GRADIENT:
            raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
        if header.length != 4 * self.shard.numel:
            raise BadMessage(f"a gradient of {header.length} bytes for a slice of {4 * self.shard.numel}")
        if header.incarnation != self.workers.get(peer.rank):
            raise BadMessage(f"it signs as incarnation {header.incarnation}")
        check_data_points(header.data_points)
        place = self._accumulator.spare()
        self._incoming.setdefault(peer, deque()).append(place)
        return as_bytes(place)

    # -- workers -------------------------------------------------------------------------------------------------

    def gradient(self, peer: Peer, header: Header) -> None:
        """A slice is complete, where `receive_into` put it. The worker's next one may have begun to arrive."""
        places = self._incoming.get(peer)
        if not header.length or not places:
            return  # nothing was put anywhere, or the worker was expelled by what came before
        tensor = places.popleft()
        if not places:
            del self._incoming[peer]
        if header.term != self.term or self._restoring is not None or self.ended:
            return  # of an earlier term: the worker was, or will be, sent parameters of the new one
        code = self._accumulator.add(peer.rank, header.incarnation, header.sequence, header.step, tensor)
        if code == Code.NONE:
            self.cut_through.completed(peer.rank, tensor)
        if code == Code.NON_FINITE:
            self.cut_through.abort()
            self.rejected += 1
            answer = Header(Kind.RECEIPT, self.index, 0, self.term, self.step, header.sequence, code=code)
            self._hub.send(peer, answer)
        elif code == Code.STALE:
            self.stale += 1
        if code != Code.ACCEPTED and code != Code.STALE:
            row = Row(peer.rank, header.incarnation, header.sequence, code)
            told = Header(Kind.ARRIVED, self.index, 0, self.term, header.step, data_points=header.data_points)
            self._tell(told, row)

    def _send_parameters(self, rows: list[Row]) -> None:
        if not rows:
            return
        payload = as_bytes(self.shard.published())
        for row in rows:
            if self.workers.get(row.worker) == row.incarnation:
                peer, header = Peer(Role.WORKER, row.worker), self._version(Kind.PARAMETERS, row.worker)
                self._hub.cancel(peer, Kind.PARAMETERS)  # older ones, on a way slower than its others: it wants these
                self._hub.send(peer, header, payload)

    def _announce(self, sent: set[int]) -> None:
        for worker in self.workers:
            if worker not in sent:
                self._hub.send(Peer(Role.WORKER, worker), self._version(Kind.STEP, worker))

    def _version(self, kind: Kind, worker: int) -> Header:
        """A header that names the current version and answers the worker's last decided push."""
        incarnation, sequence, code = self._receipts.get(worker, (-1, 0, Code.NONE))
        if incarnation != self.workers.get(worker):
            sequence, code = 0, Code.NONE
        return Header(kind, self.index, 0, self.term, self.step, sequence, self.data_points, code)

    # -- orders of shard 0 ---------------------------------------------------------------------------------------

    def obey(self, order: Order) -> None:
        """Carry out one order of shard 0.

        Raises:
            BadMessage: it does not follow those before.
        """
        if isinstance(order, Commit):
            self._commit(order)
        elif isinstance(order, Give):
            self._give(list(order.rows))
        elif isinstance(order, Expel):
            self._expel(order)
        elif isinstance(order, WriteCheckpoint):
            self._checkpoint(order.step)
        elif isinstance(order, Restore):
            self._restore(order)
        else:
            self._stop(order)

    def _commit(self, commit: Commit) -> None:
        if (commit.term, commit.step) != (self.term, self.step):
            raise BadMessage(f"a commit of term {commit.term} step {commit.step} at {self.term}, {self.step}")
        members = commit.members
        gradients = self._accumulator.gradients(members)
        sealed = self.cut_through.settle(members)
        if sealed is None:
            self.shard.apply(gradients, self.shard.learning_rate(self.data_points))
            sealed = set()
        self.stale += self._accumulator.committed(members)
        self.commits += 1
        self.step, self.data_points = commit.step + 1, commit.data_points
        for row in members:
            self._receipts[row.worker] = (row.incarnation, row.sequence, Code.ACCEPTED)
        for worker in sealed:
            self._hub.send(Peer(Role.WORKER, worker), self._version(Kind.SEALED, worker))
        recipients = [row for row in commit.rows if row.mark & RECIPIENT and row.worker not in sealed]
        self._send_parameters(recipients)
        if self.index == 0 and not self._asynchronous:
            self._announce(sealed | {row.worker for row in recipients})

    def advance(self, now_s: float) -> None:
        """Pass on what can be; to be called after each poll."""
        if self._restoring is None:
            version = self.term, self.step
            self.cut_through.advance(version, self.workers, self._incoming, self.data_points, now_s)

    def _give(self, rows: list[Row]) -> None:
        self.cut_through.abort()  # these parameters will lie where the streamed ones, of all workers, are arriving
        for row in rows:
            if row.sequence:
                self._accumulator.decide(row)
                self.stale += 1
                self._receipts[row.worker] = (row.incarnation, row.sequence, Code(row.mark))
        self._send_parameters(rows)

    def _expel(self, expel: Expel) -> None:
        worker, incarnation = expel.worker, expel.incarnation
        self.cut_through.abort()
        self._accumulator.forget(worker, incarnation)
        if self.workers.get(worker, incarnation + 1) <= incarnation:
            peer = Peer(Role.WORKER, worker)
            self._hub.send(peer, Header(Kind.EXPELLED, self.index), memoryview(bytes_of(expel.reason)))
            self._hub.close(peer)
            self.left(worker)

    def _checkpoint(self, step: int) -> None:
        term = self.term
        self.cut_through.abort()  # its optimizer state is ahead of the version to be written
        self._checkpoints.write(
            step,
            term,
            self.shard.published(),
            self.shard.optimizer_state(),
            lambda entry: self._tell(Header(Kind.WRITTEN, self.index, 0, term, step), entry),
        )

    def _restore(self, restore: Restore) -> None:
        """Go back; links are served while the disk works, but no gradient is taken."""
        self.cut_through.abort()
        self._accumulator.restart(restore.step)
        self._receipts.clear()
        self._restoring = restore.term

        def loaded(parameters: Tensor, state: State | None) -> None:
            if restore.term != self._restoring:
                return  # everybody goes back once more
            self._restoring = None
            self.shard.load(parameters, state)
            self.term, self.step, self.data_points = restore
            self._tell(Header(Kind.READY, self.index, 0, self.term, self.step), None)

        self._checkpoints.load(restore.step, loaded)

    def _stop(self, stop: Stop) -> None:
        self.cut_through.abort()
        self.ended = (stop.reason, stop.failed)
        for worker in self.workers:
            self.tell_end(Peer(Role.WORKER, worker))

    def tell_end(self, peer: Peer) -> None:
        """Tell a worker, or another shard that dials shard 0 now, that the run is over and why."""
        assert self.ended is not None
        header, reason = pack_order(Stop(*self.ended))
        self._hub.cancel(peer, Kind.PARAMETERS)  # of no more use, and in the way
        if peer.role is Role.WORKER and peer.rank in self.workers:  # but what they would have answered is told
            self._hub.send(peer, self._version(Kind.STEP, peer.rank))
        self._hub.send(peer, header._replace(sender=self.index), memoryview(reason))


def pack_order(order: Order) -> tuple[Header, bytes]:
    """An order as shard 0 says it to the other shards."""
    if isinstance(order, Commit):
        header = Header(Kind.COMMIT, 0, 0, order.term, order.step, data_points=order.data_points)
        return header, pack_rows(order.rows)
    if isinstance(order, Give):
        return Header(Kind.GIVE, 0, 0, order.term, order.step), pack_rows(order.rows)
    if isinstance(order, Expel):
        return Header(Kind.EXPEL, 0, order.incarnation, sequence=order.worker), bytes_of(order.reason)
    if isinstance(order, WriteCheckpoint):
        return Header(Kind.CHECKPOINT, 0, 0, 0, order.step, data_points=order.data_points), b""
    if isinstance(order, Restore):
        return Header(Kind.RESTORE, 0, 0, *order[:2], data_points=order.data_points), b""
    return Header(Kind.STOP, 0, code=Code.FAILED if order.failed else Code.NONE), bytes_of(order.reason)


def unpack_order(header: Header, payload: bytes | memoryview) -> Order:
    """What `pack_order` has packed; of a commit, what only shard 0 needs is left out.

    Raises:
        BadMessage: it is no order.
    """
    term, step, data_points = header.term, header.step, header.data_points
    if header.kind == Kind.COMMIT:
        return Commit(term, step, 0, data_points, tuple(unpack_rows(payload)), ())
    if header.kind == Kind.GIVE:
        return Give(term, step, tuple(unpack_rows(payload)))
    if header.kind == Kind.EXPEL:
        return Expel(header.sequence, header.incarnation, text_of(payload))
    if header.kind == Kind.CHECKPOINT:
        return WriteCheckpoint(step, data_points)
    if header.kind == Kind.RESTORE:
        return Restore(term, step, data_points)
    if header.kind == Kind.STOP:
        return Stop(text_of(payload), header.code == Code.FAILED)
    raise BadMessage(f"an order {header.kind.name} that does not exist")
