"""Shard 0's second half: feeds the coordinator with what is heard, and carries out what it decides on all shards."""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from param_servers.checkpoint.writer import Checkpoints
from param_servers.errors import BadMessage
from param_servers.servers.audit import AuditLog
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.decisions import Checkpoint, Commit, Decision, Expel, Forsake, Give, Note, Restore, Stop
from param_servers.servers.shard_node import ShardNode
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import MEMBER, Code, Header, Kind, check_data_points, pack_rows, unpack_rows

OnEvent = Callable[[dict[str, Any]], None]
_CODES = set(Code)


def check_report(header: Header, payload: bytes | memoryview) -> None:
    """Whether a shard of this run says such things.

    Raises:
        BadMessage: it does not.
    """
    if header.kind == Kind.ARRIVED:
        check_data_points(header.data_points)
        if not {row.mark for row in unpack_rows(payload)} <= _CODES:
            raise BadMessage("an answer to a gradient that does not exist")
    elif header.kind == Kind.WRITTEN:
        try:
            entry = json.loads(bytes(payload))
        except ValueError as error:
            raise BadMessage("a checkpoint's entry that is no JSON") from error
        if not isinstance(entry, dict):
            raise BadMessage("a checkpoint's entry that is none")


class Chief:
    """The coordinator's ears and hands.

    Args:
        node: shard 0 itself, which obeys like all others.
        clock: seconds, monotonic.
        on_event: called with {"event", "message", ...} for what is worth a line.
        audit: None: no log.
        keep: checkpoints to keep.
        extra: called when a checkpoint is published; its JSON goes into the manifest.
        should_stop: asked after every step and at every tick.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        node: ShardNode,
        storage: Checkpoints,
        clock: Callable[[], float],
        on_event: OnEvent,
        audit: AuditLog | None = None,
        keep: int = 5,
        extra: Callable[[], dict[str, Any]] = dict,
        should_stop: Callable[[int, int], str | None] = lambda step, data_points: None,
    ) -> None:
        self.coordinator = coordinator
        self.hub: Hub
        self.staleness: list[int] = []
        """Of the gradients committed since the last report."""
        self._node, self._storage, self._clock = node, storage, clock
        self._on_event, self._audit, self._keep, self._extra = on_event, audit, keep, extra
        self._should_stop = should_stop
        self._servers: set[int] = set()
        self._files: dict[int, dict[str, Any]] = {}
        self._todo: deque[Decision] = deque()
        self._busy = False

    # -- what is heard -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Shard 0 itself is there."""
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
            self._carry_out(self.coordinator.worker_left(peer.rank, incarnation, reason))
        elif peer.rank in self._servers:
            self._servers.discard(peer.rank)
            self._carry_out(self.coordinator.server_left(peer.rank, self._clock()))

    def pull(self, peer: Peer, header: Header) -> None:
        self._carry_out(self.coordinator.pulled(peer.rank, header.incarnation, header.step, header.term))

    def report(self, header: Header, payload: bytes | memoryview) -> None:
        """A shard tells something (shard 0 too)."""
        now_s, shard = self._clock(), header.sender
        self.coordinator.server_heard(shard, now_s)
        if header.kind == Kind.ARRIVED:
            for row in unpack_rows(payload):
                self._carry_out(
                    self.coordinator.arrived(shard, row, header.step, header.data_points, header.term, now_s)
                )
        elif header.kind == Kind.READY:
            self._carry_out(self.coordinator.server_ready(shard, header.term, now_s))
        elif header.kind == Kind.ALIVE:
            self.hub.send(Peer(Role.SERVER, shard), header._replace(sender=0))
        elif header.kind == Kind.WRITTEN and header.term == self.coordinator.term:  # else of a history that was undone
            self._written(shard, header.step, json.loads(bytes(payload)))

    def tick(self) -> None:
        """Look at the clock and ask whether to stop."""
        self._carry_out(self.coordinator.tick(self._clock()))
        self._ask_whether_to_stop()

    def _ask_whether_to_stop(self) -> None:
        if self.coordinator.state == "running":
            reason = self._should_stop(self.coordinator.step, self.coordinator.data_points)
            if reason:
                self.stop(reason)

    def stop(self, reason: str) -> None:
        """End the run as asked."""
        self._carry_out(self.coordinator.stop(reason, self._clock()))

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
        term = self.coordinator.term
        if isinstance(decision, Commit):
            self._commit(decision)
        elif isinstance(decision, Give):
            self._order(Header(Kind.GIVE, 0, term=decision.term, step=decision.step), pack_rows(decision.rows))
        elif isinstance(decision, Expel):
            self._event("expelled", f"worker {decision.worker} expelled: {decision.reason}", worker=decision.worker)
            self._log("expelled", worker=decision.worker, incarnation=decision.incarnation, reason=decision.reason)
            header = Header(Kind.EXPEL, 0, decision.incarnation, term, sequence=decision.worker)
            self._order(header, decision.reason.encode())
        elif isinstance(decision, Forsake):
            self._event("server_lost", decision.reason)
            self._servers.discard(decision.shard)
            self.hub.close(Peer(Role.SERVER, decision.shard))
        elif isinstance(decision, Restore):
            self._storage.set_aside_after(decision.step, lambda: self._roll_back(decision))
        elif isinstance(decision, Checkpoint):
            self._files.clear()
            self._order(Header(Kind.CHECKPOINT, 0, 0, term, decision.step, data_points=decision.data_points))
        elif isinstance(decision, Stop):
            self._log("stopped", reason=decision.reason, failed=decision.failed)
            code = Code.FAILED if decision.failed else Code.NONE
            self._order(Header(Kind.STOP, 0, term=term, code=code), decision.reason.encode())
        elif isinstance(decision, Note):
            self._note(decision)

    def _roll_back(self, restore: Restore) -> None:
        """Later checkpoints are out of the way. Not when the run has ended, or begun a newer term, meanwhile."""
        if self.coordinator.state == "restoring" and self.coordinator.term == restore.term:
            self._log("rollback", term=restore.term, step=restore.step, data_points=restore.data_points)
            header = Header(Kind.RESTORE, 0, 0, restore.term, restore.step, data_points=restore.data_points)
            self._order(header)

    def _commit(self, commit: Commit) -> None:
        self.staleness += commit.staleness
        if self._audit is not None:
            members = [(row.worker, row.incarnation, row.sequence) for row in commit.rows if row.mark & MEMBER]
            self._audit.commit(commit, members, self._node.shard.learning_rate(commit.data_points_before))
        header = Header(Kind.COMMIT, 0, 0, commit.term, commit.step, data_points=commit.data_points)
        self._order(header, pack_rows(commit.rows))
        self._ask_whether_to_stop()

    def _order(self, header: Header, payload: bytes = b"") -> None:
        """Every shard obeys, in the order of these calls; the others are told first, they have further to go."""
        for shard in self._servers:
            self.hub.send(Peer(Role.SERVER, shard), header, memoryview(payload))
        self.hub.flush()
        self._node.obey(header, payload)

    def _written(self, shard: int, step: int, entry: dict[str, Any]) -> None:
        error = str(entry.get("error", ""))
        if error:
            error = f"server {shard}: {error}"
            self._carry_out(self.coordinator.checkpoint_done(step, error))
            return
        self._files[shard] = entry
        if self.coordinator.checkpointing.slice_written(shard, step):
            files = [self._files[index] for index in sorted(self._files)]
            term, data_points = self._node.term, self.coordinator.checkpointing.data_points

            def published(payload: bytes) -> None:
                failure = str(json.loads(payload).get("error", ""))
                self._carry_out(self.coordinator.checkpoint_done(step, failure))

            self._storage.publish(step, term, data_points, files, self._extra(), self._keep, published)

    def _note(self, note: Note) -> None:
        if note.event in ("shrunk", "grown"):
            self._log(note.event, step=self.coordinator.step, num_gradients=self.coordinator.steps.num_gradients)
        self._event(note.event, note.message, **({} if note.worker is None else {"worker": note.worker}))

    def _event(self, event: str, message: str, **fields: Any) -> None:
        self._on_event({"event": event, "message": message, **fields})

    def _log(self, kind: str, **fields: Any) -> None:
        if self._audit is not None:
            self._audit.write(kind, **fields)
