"""The chief of a majority all-reduce, a thread of rank 0: feeds the coordinator with what the ranks say, and tells them
what it decides. No tensors pass through it."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from param_servers.config import ExchangeConfig
from param_servers.errors import BadMessage, told
from param_servers.majority.coordinator import MajorityCoordinator
from param_servers.majority.decisions import Began, FormGroup, LeaveGroup, MajorityDecision
from param_servers.majority.messages import Formation, check_standing, no_payload, pack_formation
from param_servers.servers.audit import AuditLog
from param_servers.servers.decisions import Commit, Expel, Note, Stop
from param_servers.timeouts import LAST_WORDS_S
from param_servers.wire.awake_clock import AwakeClock
from param_servers.wire.events import Event, Joined, Left, Message, Rejected
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.messages import MEMBER, Code, Header, Kind, pack_rows
from param_servers.wire.tcp_hub import TcpHub

OnEvent = Callable[[dict[str, Any]], None]
ShouldStop = Callable[[int, int], str | None]
NAP_S = 0.05


class MajorityChief:
    """The coordinator's ears and hands.

    Args:
        config: the run's; `fingerprint` is that of its layout.
        secret: every rank must prove to know it.
        store: where the key-value store listens, which groups need to find each other.
        learning_rate: of the step that begins with so many data points committed, for the audit log.
        should_stop: asked after each committed step and at each `tick`.
        on_event: called with {"event", "message"}.
        audit: closed when the run has ended; None: no log.
    """

    def __init__(
        self,
        *,
        config: ExchangeConfig,
        fingerprint: str,
        secret: bytes,
        store: tuple[str, int],
        learning_rate: Callable[[int], float],
        should_stop: ShouldStop,
        on_event: OnEvent,
        audit: AuditLog | None,
    ) -> None:
        self._clock = AwakeClock(config.step_timeout_s)
        self.coordinator = coordinator = MajorityCoordinator(config, fingerprint, self._clock.now_s())
        self._store, self._learning_rate, self._should_stop = store, learning_rate, should_stop
        self._on_event, self._audit = on_event, audit
        self._timeouts, self._alive_s = config.timeouts, 0.0
        self._hub = TcpHub(
            secret, no_payload, admit=coordinator.roll.admits, silence_timeout_s=self._timeouts.silence_s
        )

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the door; returns the address."""
        return self._hub.listen(host, port)

    def run(self, given_up: threading.Event) -> None:
        """Decide until the run has ended, or nobody wants it any more."""
        try:
            try:
                self._decide(given_up)
            except BaseException as error:  # all ranks are told, not this thread
                self._send_stop(Stop(f"rank 0 cannot decide any more: {told(error)}", True))
            self._hub.drain(LAST_WORDS_S)
        finally:
            self._hub.shut()
            if self._audit is not None:
                self._audit.close()

    def _decide(self, given_up: threading.Event) -> None:
        while self.coordinator.phase != "stopped" and not given_up.is_set():
            for event in self._hub.poll(NAP_S):
                self.handle(event)
            self._carry_out(self.coordinator.tick(self._clock.now_s()))
            self._stop_when_asked()
            self._say_that_it_lives(self._clock.now_s())

    def _say_that_it_lives(self, now_s: float) -> None:
        """A stopped process's kernel still answers for its links: only words show that the chief is there."""
        if now_s >= self._alive_s:
            self._alive_s = now_s + self._timeouts.alive_every_s
            self._send_all(Header(Kind.ALIVE, 0))

    def _gone(self, rank: int, now_s: float) -> None:
        """A rank's link is gone. When rank 0 has just been stopped and nobody else is left, the others have lost it."""
        alone = set(self.coordinator.roll.incarnations) == {0, rank}
        if rank and alone and now_s - self._clock.woke_s < self._timeouts.step_s:
            why = f"rank 0 was stopped for {self._clock.slept_s:.0f} s, and the others have ended the run without it"
            self._carry_out(self.coordinator.stop(why, failed=True))

    # -- what is heard -------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Take in one event of the hub."""
        if isinstance(event, Message):
            try:
                check_standing(event.header)
            except BadMessage as error:
                self._hub.close(event.peer)
                event = Left(event.peer, str(error))
        if isinstance(event, Message):
            self._hear(event.peer.rank, event.header, self._clock.now_s())
        elif isinstance(event, Joined):
            self._carry_out(self.coordinator.joined(event.peer.rank, event.hello.incarnation))
        elif isinstance(event, Left):
            now_s = self._clock.now_s()
            self._gone(event.peer.rank, now_s)
            self._carry_out(self.coordinator.left(event.peer.rank, event.reason, now_s))
        elif isinstance(event, Rejected):
            self._on_event({"event": "rejected", "message": f"chief: {event.reason}", "number": event.number})

    def _hear(self, rank: int, header: Header, now_s: float) -> None:
        generation, step, data_points = header.term, header.step, header.data_points
        if header.kind == Kind.ABORTED:
            self._carry_out(self.coordinator.stands(rank, generation, step, data_points, now_s))
        elif header.kind == Kind.READY:
            self._carry_out(self.coordinator.ready(rank, generation, now_s))
        elif header.kind == Kind.GRADIENT:
            self._carry_out(self.coordinator.gradient(rank, generation, header.sequence, step, data_points, now_s))

    def _stop_when_asked(self) -> None:
        progress = self.coordinator.progress
        if progress is not None and (reason := self._should_stop(*progress)) is not None:
            self._carry_out(self.coordinator.stop(reason, failed=False))

    # -- what is decided -----------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[MajorityDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Commit):
                self._commit(decision)
            elif isinstance(decision, LeaveGroup):
                self._send_all(Header(Kind.ABORTED, 0, term=decision.generation))
            elif isinstance(decision, FormGroup):
                self._form(decision)
            elif isinstance(decision, Began):
                self._note("running", decision.message)
                self._stop_when_asked()
                for early in self.coordinator.count_early(self._clock.now_s()):
                    self._carry_out(early)
            elif isinstance(decision, Expel):
                self._expel(decision.worker, decision.reason)
            elif isinstance(decision, Stop):
                self._send_stop(decision)
            elif isinstance(decision, Note):
                self._note(decision.event, decision.message)

    def _commit(self, commit: Commit) -> None:
        rows = [row for row in commit.rows if row.mark & MEMBER]
        if self._audit is not None:
            members = [(row.worker, row.incarnation, row.sequence) for row in rows]
            self._audit.commit(commit, members, self._learning_rate(commit.data_points_before))
        generation = self.coordinator.generation
        header = Header(Kind.COMMIT, 0, term=generation, step=commit.step, data_points=commit.data_points)
        payload = pack_rows(rows)
        for rank in self.coordinator.members:
            self._send(rank, header, payload)
        self._hub.flush()
        self._stop_when_asked()

    def _form(self, form: FormGroup) -> None:
        generation, members, source, step, data_points = form
        if self._audit is not None:
            self._audit.write("rollback", term=generation, step=step, data_points=data_points)
        header = Header(Kind.RESTORE, 0, term=generation, step=step, data_points=data_points)
        payload = pack_formation(Formation(list(members), source, self._store))
        for rank in members:
            self._send(rank, header, payload)

    def _expel(self, rank: int, reason: str) -> None:
        self._note("expelled", f"rank {rank} expelled: {reason}")
        self._send(rank, Header(Kind.EXPELLED, 0), reason.encode())
        self._hub.close(Peer(Role.WORKER, rank))

    def _send_stop(self, stop: Stop) -> None:
        code = Code.FAILED if stop.failed else Code.NONE
        self._send_all(Header(Kind.STOP, 0, code=code), stop.reason.encode())

    def _send_all(self, header: Header, payload: bytes = b"") -> None:
        """To every rank that is connected, in a group or not."""
        for rank in self.coordinator.roll.incarnations:
            self._send(rank, header, payload)

    def _send(self, rank: int, header: Header, payload: bytes = b"") -> None:
        self._hub.send(Peer(Role.WORKER, rank), header, memoryview(payload))

    def _note(self, event: str, message: str) -> None:
        self._on_event({"event": event, "message": message})
