"""Shard 0's second half: feeds the coordinator with what is heard, and carries out what it decides on all shards."""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from param_servers.checkpoint.writer import CheckpointFiles
from param_servers.errors import BadMessage, RunBroken
from param_servers.exchange import OnEvent, ShouldStop, never
from param_servers.servers.audit import AuditLog
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.shard_node import ShardNode, pack_order
from param_servers.servers.step_commits import (
    Commit,
    Decision,
    Expel,
    Forsake,
    Note,
    Order,
    Restore,
    Stop,
    WriteCheckpoint,
)
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Code, Header, Kind, Row, check_data_points, unpack_rows

_CODES = set(Code)


class Chief:
    """The coordinator's ears and hands.

    Args:
        node: shard 0 itself, which obeys like all others.
        hub: the way to the others.
        clock: seconds, monotonic.
        on_event: called with {"event", "message"} for what is worth a line.
        audit: None: no log.
        keep: checkpoints to keep.
        should_stop: asked after every step and at every tick; RunBroken from it ends the run as failed.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        node: ShardNode,
        hub: Hub,
        checkpoints: CheckpointFiles,
        clock: Callable[[], float],
        on_event: OnEvent,
        audit: AuditLog | None = None,
        keep: int = 5,
        should_stop: ShouldStop = never,
    ) -> None:
        self.coordinator = coordinator
        self._node, self._hub, self._checkpoints, self._clock = node, hub, checkpoints, clock
        self._on_event, self._audit, self._keep = on_event, audit, keep
        self._should_stop = should_stop
        self._servers: set[int] = set()
        self._files: dict[int, dict[str, Any]] = {}
        self._todo: deque[Decision] = deque()
        self._busy = False

    # -- what is heard -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._carry_out(self.coordinator.server_joined(0, 0, self._clock()))

    def joined(self, hello: Hello) -> None:
        now_s = self._clock()
        if hello.role is Role.WORKER:
            self._carry_out(self.coordinator.worker_joined(hello.rank, hello.incarnation, hello.term, now_s))
        else:
            self._servers.add(hello.rank)
            self._carry_out(self.coordinator.server_joined(hello.rank, hello.term, now_s))

    def left(self, peer: Peer, incarnation: int, reason: str) -> None:
        if peer.role is Role.WORKER:
            self._carry_out(self.coordinator.steps.left(peer.rank, incarnation, reason))
        elif peer.rank in self._servers:
            self._servers.discard(peer.rank)
            self._carry_out(self.coordinator.server_left(peer.rank, self._clock()))

    def pull(self, peer: Peer, header: Header) -> None:
        self._carry_out(self.coordinator.pulled(peer.rank, header.incarnation, header.step, header.term))

    def hear(self, peer: Peer, header: Header, payload: memoryview) -> None:
        """Another shard tells something.

        Raises:
            BadMessage: no shard of this run says that.
        """
        self.coordinator.server_heard(peer.rank, self._clock())
        if header.kind == Kind.ARRIVED:
            check_data_points(header.data_points)
            rows = unpack_rows(payload)
            if not {row.mark for row in rows} <= _CODES:
                raise BadMessage("an answer to a gradient that does not exist")
            for row in rows:
                self.told(header, row)
        elif header.kind == Kind.READY:
            self.told(header, None)
        elif header.kind == Kind.WRITTEN:
            self.told(header, _entry(payload))
        elif header.kind == Kind.ALIVE:
            self._hub.send(peer, header._replace(sender=0))

    def told(self, header: Header, what: Row | dict[str, Any] | None) -> None:
        """See `shard_node.Tell`; of another shard or of shard 0 itself."""
        shard, term, step = header.sender, header.term, header.step
        if isinstance(what, Row):
            arrived = self.coordinator.arrived(shard, what, step, header.data_points, term, self._clock())
            self._carry_out(arrived)
        elif what is None:
            self._carry_out(self.coordinator.server_ready(shard, term, self._clock()))
        elif term == self.coordinator.term:  # else of a history that was undone
            self._written(shard, step, what)

    def _written(self, shard: int, step: int, entry: dict[str, Any]) -> None:
        if "error" in entry:
            self._carry_out(self.coordinator.checkpoint_done(step, f"server {shard}: {entry['error']}", self._clock()))
            return
        self._files[shard] = entry
        if self.coordinator.checkpointing.slice_written(shard, step):
            files = [self._files[index] for index in sorted(self._files)]
            data_points = self.coordinator.checkpointing.data_points

            def published(answer: dict[str, Any]) -> None:
                error = str(answer.get("error", ""))
                self._carry_out(self.coordinator.checkpoint_done(step, error, self._clock()))

            self._checkpoints.publish(step, self._node.term, data_points, files, self._keep, published)

    def tick(self) -> None:
        self._carry_out(self.coordinator.tick(self._clock()))
        self._ask_whether_to_stop()

    def _ask_whether_to_stop(self) -> None:
        if self.coordinator.may_stop(self._clock()):
            try:
                reason = self._should_stop(self.coordinator.step, self.coordinator.data_points)
            except RunBroken as broken:  # no steps are lost by it, and all are told
                self.stop(str(broken), failed=True)
                return
            if reason is not None:
                self.stop(reason)

    def stop(self, reason: str, failed: bool = False) -> None:
        self._carry_out(self.coordinator.stop(reason, self._clock(), failed))

    # -- what is decided -----------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        """One decision after the other, also when carrying one out leads to the next."""
        self._todo.extend(decisions)
        if self._busy or not self._todo:
            return
        self._busy = True
        try:
            while self._todo:
                self._execute(self._todo.popleft())
        finally:
            self._busy = False

    def _execute(self, decision: Decision) -> None:
        if isinstance(decision, Note):
            self._note(decision)
        elif isinstance(decision, Forsake):
            self._note(Note("server_lost", decision.reason))
            self._servers.discard(decision.shard)
            self._hub.close(Peer(Role.SERVER, decision.shard))
        elif isinstance(decision, Restore):
            self._checkpoints.set_aside_after(decision.step, lambda: self._roll_back(decision))
        else:
            self._record(decision)
            self._order(decision)
            if isinstance(decision, Commit):
                self._ask_whether_to_stop()

    def _record(self, order: Order) -> None:
        if isinstance(order, Commit):
            if self._audit is not None:
                self._audit.commit(order, self._node.shard.learning_rate(order.data_points_before))
        elif isinstance(order, Expel):
            self._note(Note("expelled", f"worker {order.worker} expelled: {order.reason}"))
            self._log("expelled", worker=order.worker, incarnation=order.incarnation, reason=order.reason)
        elif isinstance(order, WriteCheckpoint):
            self._files.clear()
            self._checkpoints.make_room(order.step, self._node.term)
        elif isinstance(order, Stop):
            self._log("stopped", reason=order.reason, failed=order.failed)

    def _roll_back(self, restore: Restore) -> None:
        """Later checkpoints are out of the way. Not when the run has ended, or begun a newer term, meanwhile."""
        if self.coordinator.state == "restoring" and self.coordinator.term == restore.term:
            self._log("rollback", term=restore.term, step=restore.step, data_points=restore.data_points)
            self._order(restore)

    def _order(self, order: Order) -> None:
        """Every shard obeys, in the order of these calls; the others are told first, they have further to go."""
        if self._servers:
            header, payload = pack_order(order)
            for shard in self._servers:
                self._hub.send(Peer(Role.SERVER, shard), header, memoryview(payload))
            self._hub.flush()
        self._node.obey(order)

    def _note(self, note: Note) -> None:
        if note.event in ("shrunk", "grown"):
            self._log(note.event, step=self.coordinator.step, num_gradients=self.coordinator.steps.num_gradients)
        self._on_event({"event": note.event, "message": note.message})

    def _log(self, kind: str, **fields: Any) -> None:
        if self._audit is not None:
            self._audit.write(kind, **fields)


def _entry(payload: memoryview) -> dict[str, Any]:
    """Of a checkpoint, as another shard tells it.

    Raises:
        BadMessage: it is none.
    """
    try:
        entry = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise BadMessage("a checkpoint's entry that is no JSON") from error
    kinds = {"file": str, "bytes": int, "sha256": str}
    if not isinstance(entry, dict) or not (
        isinstance(entry.get("error"), str) or all(isinstance(entry.get(name), kind) for name, kind in kinds.items())
    ):
        raise BadMessage("a checkpoint's entry that is none")
    return entry
