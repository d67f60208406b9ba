"""What every shard does with what it hears: takes gradient slices from workers, obeys shard 0, answers workers.

It talks through a hub and never blocks; shard 0 obeys its own chief through the same `obey`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from param_servers.checkpoint.writer import Storage
from param_servers.errors import BadMessage
from param_servers.layout import as_bytes
from param_servers.optim import State
from param_servers.servers.accumulator import Accumulator
from param_servers.servers.cut_through import Bets, Version
from param_servers.servers.shard import Shard, tensor_of
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import (
    MEMBER,
    MOST_CONTROL_BYTES,
    RECIPIENT,
    Code,
    Dtype,
    Header,
    Kind,
    Row,
    check_data_points,
    pack_rows,
    unpack_rows,
)

_FROM_WORKERS = {Kind.GRADIENT}
_FROM_SHARDS = {Kind.ARRIVED, Kind.WRITTEN}
_FROM_SHARD_0 = {Kind.COMMIT, Kind.GIVE, Kind.EXPEL, Kind.STOP}
Report = Callable[[Header, bytes], None]
"""Tells shard 0 something: (header, payload)."""


class ShardNode:
    """One shard among its peers.

    Args:
        index: which shard; 0 also announces new versions to workers that are not sent them.
        shard: its tensors.
        asynchronous: gradients of older versions count.
        storage: where checkpoints go and come from.
        report: how shard 0 is told.
        all_needed: workers whose gradients every step waits for (no backup workers), so that updates can be passed on
            while they arrive; 0: never.
    """

    def __init__(
        self, index: int, shard: Shard, asynchronous: bool, storage: Storage, report: Report, all_needed: int = 0
    ) -> None:
        self.index = index
        self.shard = shard
        self._hub: Hub
        self.term = self.step = self.data_points = 0
        self.ended: tuple[str, bool] | None = None
        """(reason, failed) once the run is over."""
        self.commits = self.stale = self.rejected = 0
        self.workers: dict[int, int] = {}
        """Incarnation of each connected worker."""
        self._asynchronous = asynchronous
        self._accumulator = Accumulator(shard.numel, keeps_older=asynchronous)
        self._storage = storage
        self._report = report
        self._incoming: dict[Peer, Tensor] = {}
        """Where the slice goes that is arriving from a worker now."""
        self._receipts: dict[int, tuple[int, int, Code]] = {}
        """Last decided push of each worker: (incarnation, sequence, answer)."""
        self._bets = Bets(index, shard, self._accumulator, all_needed)
        self._restoring: int | None = None
        """The term whose state is being loaded."""

    @property
    def hub(self) -> Hub:
        """The way out; to be set before anything else is called."""
        return self._hub

    @hub.setter
    def hub(self, hub: Hub) -> None:
        self._hub = self._bets.hub = hub

    # -- links ---------------------------------------------------------------------------------------------------

    def joined(self, hello: Hello) -> None:
        self.workers[hello.rank] = hello.incarnation

    def left(self, worker: int) -> None:
        self.workers.pop(worker, None)
        self._incoming.pop(Peer(Role.WORKER, worker), None)
        self._bets.left(worker)

    def receive_into(self, peer: Peer, header: Header) -> memoryview:
        """A place for the payload of a frame, or BadMessage: nothing is allocated on a stranger's word."""
        if peer.role is Role.WORKER:
            return self._slice_for(peer, header)
        allowed = _FROM_SHARD_0 if peer.rank == 0 else _FROM_SHARDS
        if header.kind not in allowed or header.dtype != Dtype.BYTES or header.length > MOST_CONTROL_BYTES:
            raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
        return memoryview(bytearray(header.length))

    def _slice_for(self, peer: Peer, header: Header) -> memoryview:
        if header.kind not in _FROM_WORKERS or header.dtype != Dtype.FLOAT32 or header.length % 4:
            raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
        if header.length > 4 * self.shard.numel:
            raise BadMessage(f"a gradient of {header.length} bytes for a slice of {4 * self.shard.numel}")
        if header.incarnation != self.workers.get(peer.rank):
            raise BadMessage(f"it signs as incarnation {header.incarnation}")
        check_data_points(header.data_points)
        whole = header.length == 4 * self.shard.numel
        place = as_bytes(self._accumulator.spare() if whole else torch.empty(header.length // 4))
        self._incoming[peer] = tensor_of(place)
        return place

    # -- workers -------------------------------------------------------------------------------------------------

    def gradient(self, peer: Peer, header: Header, payload: memoryview) -> None:
        """A slice is complete. The next one of this worker may have begun to arrive in the same poll."""
        if header.term != self.term or self._restoring is not None or self.ended or not header.length:
            return  # of an earlier term: the worker was, or will be, sent parameters of the new one
        tensor = tensor_of(payload)
        if self._incoming.get(peer) is tensor:
            del self._incoming[peer]
        code = self._accumulator.add(peer.rank, header.incarnation, header.sequence, header.step, tensor)
        if code == Code.NONE:
            self._bets.completed(peer.rank, tensor)
        if code in (Code.NON_FINITE, Code.WRONG_LENGTH):
            self._bets.abort()
            self.rejected += 1
            answer = Header(Kind.RECEIPT, self.index, 0, self.term, self.step, header.sequence, code=code)
            self.hub.send(peer, answer)
        elif code == Code.STALE:
            self.stale += 1
        if code != Code.ACCEPTED and code != Code.STALE:
            row = Row(peer.rank, header.incarnation, header.sequence, code)
            fields = Header(Kind.ARRIVED, self.index, 0, self.term, header.step, data_points=header.data_points)
            self._report(fields, pack_rows([row]))

    def _send_parameters(self, rows: list[Row]) -> None:
        if not rows:
            return
        payload = as_bytes(self.shard.published())
        for row in rows:
            if self.workers.get(row.worker) == row.incarnation:
                header = self._version(Kind.PARAMETERS, row.worker, Dtype.FLOAT32)
                self.hub.send(Peer(Role.WORKER, row.worker), header, payload)

    def _announce(self, sent: set[int]) -> None:
        for worker in self.workers:
            if worker not in sent:
                self.hub.send(Peer(Role.WORKER, worker), self._version(Kind.STEP, worker))

    def _version(self, kind: Kind, worker: int, dtype: Dtype = Dtype.BYTES) -> Header:
        """A header that names the current version and answers the worker's last decided push."""
        incarnation, sequence, code = self._receipts.get(worker, (-1, 0, Code.NONE))
        if incarnation != self.workers.get(worker):
            sequence, code = 0, Code.NONE
        return Header(kind, self.index, 0, self.term, self.step, sequence, self.data_points, code, dtype)

    # -- orders of shard 0 ---------------------------------------------------------------------------------------

    def obey(self, header: Header, payload: bytes | memoryview) -> None:
        """Carry out one order of shard 0."""
        kind = header.kind
        if kind == Kind.COMMIT:
            self._commit(header, unpack_rows(payload))
        elif kind == Kind.GIVE:
            self._give(unpack_rows(payload))
        elif kind == Kind.EXPEL:
            self._expel(header.sequence, header.incarnation, bytes(payload))
        elif kind == Kind.CHECKPOINT:
            self._checkpoint(header)
        elif kind == Kind.RESTORE:
            self._restore(header)
        elif kind == Kind.STOP:
            self._stop(header, bytes(payload))
        else:
            raise BadMessage(f"an order {kind.name} that does not exist")

    def _commit(self, header: Header, rows: list[Row]) -> None:
        if header.term != self.term or header.step != self.step:
            raise BadMessage(f"a commit of term {header.term} step {header.step} at {self.term}, {self.step}")
        members = [row for row in rows if row.mark & MEMBER]
        gradients = self._accumulator.gradients(members)
        streamed = self._bets.settle(members)
        if streamed is None:
            self.shard.apply(gradients, self.shard.learning_rate(self.data_points))
        self.stale += self._accumulator.committed(members)
        self.commits += 1
        self.step, self.data_points = header.step + 1, header.data_points
        for row in members:
            self._receipts[row.worker] = (row.incarnation, row.sequence, Code.ACCEPTED)
        sealed = streamed or set()
        for worker in sealed:
            self.hub.send(Peer(Role.WORKER, worker), self._version(Kind.SEALED, worker))
        recipients = [row for row in rows if row.mark & RECIPIENT and row.worker not in sealed]
        self._send_parameters(recipients)
        if self.index == 0 and not self._asynchronous:
            self._announce(sealed | {row.worker for row in recipients})

    def advance(self) -> None:
        """Pass on what can be; to be called after each poll."""
        if self._restoring is None:
            self._bets.advance(Version(self.term, self.step), self.workers, self._incoming, self.data_points)

    @property
    def betting(self) -> bool:
        """Whether an update is being passed on: then the shard's tensors are between two versions."""
        return self._bets.open

    def _give(self, rows: list[Row]) -> None:
        self._bets.abort_if_streamed_to({row.worker for row in rows})
        for row in rows:
            if row.sequence:
                self._accumulator.decide(row)
                self.stale += 1
                self._receipts[row.worker] = (row.incarnation, row.sequence, Code(row.mark))
        self._send_parameters(rows)

    def _expel(self, worker: int, incarnation: int, reason: bytes) -> None:
        self._bets.abort_if_on(worker)
        self._accumulator.forget(worker, incarnation)
        if self.workers.get(worker, incarnation + 1) <= incarnation:
            peer = Peer(Role.WORKER, worker)
            self.hub.send(peer, Header(Kind.EXPELLED, self.index), memoryview(reason))
            self.hub.close(peer)
            self.left(worker)

    def _checkpoint(self, header: Header) -> None:
        step, term = header.step, self.term
        self._bets.abort()  # its optimizer state is ahead of the version to be written

        def written(payload: bytes) -> None:
            self._report(Header(Kind.WRITTEN, self.index, 0, term, step), payload)

        self._storage.write(step, term, self.shard.published(), self.shard.optimizer_state(), written)

    def _restore(self, header: Header) -> None:
        """Go back; links are served while the disk works, but no gradient is taken."""
        self._bets.abort()
        self._accumulator.restart(header.step)
        self._receipts.clear()
        self._restoring = header.term

        def loaded(parameters: Tensor, state: State | None) -> None:
            if header.term != self._restoring:
                return  # everybody goes back once more
            self._restoring = None
            self.shard.load(parameters, state)
            self.term, self.step, self.data_points = header.term, header.step, header.data_points
            self._report(Header(Kind.READY, self.index, 0, self.term, self.step), b"")

        self._storage.load(header.step, loaded)

    def _stop(self, header: Header, reason: bytes) -> None:
        self._bets.abort()
        self.ended = (reason.decode("utf-8", "replace"), header.code == Code.FAILED)
        for worker in list(self.workers):
            self.hub.send(
                Peer(Role.WORKER, worker), Header(Kind.STOP, self.index, code=header.code), memoryview(reason)
            )
