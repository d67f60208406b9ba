"""Who decides in a majority all-reduce: a thread of rank 0. No tensors pass through it.

    gathering   every rank says how far it is; those that do not are expelled
    forming     the ranks that answered form a group, and take over the state of the one that is furthest
    running     the coordinator commits each step as soon as g ranks are ready; all sum at once
    stopped

Whenever a rank is lost, comes (back), or finds its group broken, everybody gathers again and goes on from there.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from param_servers.audit import AuditLog
from param_servers.config import ExchangeConfig
from param_servers.coordinator import Coordinator
from param_servers.decisions import Commit, Decision, Expel, Note, Settings, Stop
from param_servers.events import Event, Joined, Left, Message, Rejected
from param_servers.handshake import Peer, Role
from param_servers.majority_messages import Formation, no_payload, pack_formation
from param_servers.messages import MEMBER, Code, Header, Kind, Row, pack_rows
from param_servers.roll_call import RollCall
from param_servers.tcp_hub import TcpHub

OnEvent = Callable[[dict[str, Any]], None]
ShouldStop = Callable[[int, int], str | None]
NAP_S = 0.05
MOST_FORMATIONS = 20
"""Groups formed in a row without one committed step between; then the run is broken."""
_LAST_WORDS_S = 5.0


class MajorityChief:
    """The decisions of a run.

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
        self._config, self._store = config, store
        self._roll = roll = RollCall(config.num_workers, fingerprint)
        self._learning_rate, self._should_stop = learning_rate, should_stop
        self._on_event, self._audit = on_event, audit
        self._hub = TcpHub(secret, no_payload, admit=roll.admits, silence_timeout_s=max(config.step_timeout_s, 1.0))
        self._coordinator: Coordinator | None = None
        self._ready: set[int] = set()
        self._early: list[tuple[int, Header]] = []
        """Gradients that were ready before the last rank had joined the group."""
        self._members: set[int] = set()
        self._generation = 0
        self._fruitless = 0
        self.phase = "gathering"
        self._deadline_s = time.monotonic() + config.join_timeout_s

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the door; returns the address."""
        return self._hub.listen(host, port)

    def run(self, given_up: threading.Event) -> None:
        """Decide until the run has ended, or nobody wants it any more."""
        try:
            while self.phase != "stopped" and not given_up.is_set():
                for event in self._hub.poll(NAP_S):
                    self.handle(event)
                self.tick(time.monotonic())
            self._hub.drain(_LAST_WORDS_S)
        finally:
            self._hub.shut()
            if self._audit is not None:
                self._audit.close()

    # -- what is heard -------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Take in one event of the hub."""
        if isinstance(event, Message):
            self._hear(event.peer.rank, event.header)
        elif isinstance(event, Joined):
            self._roll.incarnations[event.peer.rank] = event.hello.incarnation
            self._note("joined", f"rank {event.peer.rank} joined (incarnation {event.hello.incarnation})")
        elif isinstance(event, Left):
            self._left(event.peer.rank, event.reason)
        elif isinstance(event, Rejected):
            self._note("rejected", f"chief: {event.reason}")

    def _hear(self, rank: int, header: Header) -> None:
        newcomer = rank not in self._members
        if header.kind == Kind.ABORTED and (newcomer or header.term == self._generation):
            if self.phase != "gathering":
                self._gather(f"rank {rank} {'came' if newcomer else 'found its group broken'}")
            self._roll.standing[rank] = (header.step, header.data_points)
            self._form_when_complete()
        elif header.kind == Kind.READY and header.term == self._generation and self.phase == "forming":
            self._ready.add(rank)
            if self._ready == self._members:
                self._run()
        elif header.kind == Kind.GRADIENT and header.term == self._generation:
            if self.phase == "forming":
                self._early.append((rank, header))
            elif self._coordinator is not None:
                self._gradient_is_ready(self._coordinator, rank, header)

    def _gradient_is_ready(self, coordinator: Coordinator, rank: int, header: Header) -> None:
        row = Row(rank, self._roll.incarnations.get(rank, 0), header.sequence)
        now_s = time.monotonic()
        self._carry_out(coordinator.arrived(0, row, header.step, header.data_points, coordinator.term, now_s))

    def _left(self, rank: int, reason: str) -> None:
        if not self._roll.leave(rank):
            return
        self._note("left", f"rank {rank} left: {reason}")
        if rank in self._members and self.phase != "gathering":
            self._gather(f"rank {rank} is lost")
        elif self.phase == "gathering" and self._generation:
            self._form_when_complete()

    def tick(self, now_s: float) -> None:
        """Look at the clock: nothing is waited for longer than stated."""
        if self._coordinator is not None:
            decisions = self._coordinator.tick(now_s)
            late = [decision for decision in decisions if isinstance(decision, Expel)]
            if late:
                for decision in late:
                    self._expel(decision.worker, decision.reason)
                self._gather("a step did not end in time")
            else:
                self._carry_out(decisions)
                self._stop_when_asked(now_s)
        elif self.phase in ("gathering", "forming") and now_s > self._deadline_s:
            self._go_on_without_the_silent()

    # -- gathering and forming -----------------------------------------------------------------------------------

    def _gather(self, why: str) -> None:
        self._note("regrouping", f"{why}; the others form a new group")
        self.phase, self._coordinator = "gathering", None
        self._roll.standing.clear()
        self._deadline_s = time.monotonic() + self._config.step_timeout_s
        for rank in self._roll.incarnations:
            self._send(rank, Header(Kind.ABORTED, 0, term=self._generation))

    def _form_when_complete(self) -> None:
        if self.phase == "gathering" and self._roll.complete(first=not self._generation):
            self._form()

    def _go_on_without_the_silent(self) -> None:
        answered = set(self._roll.standing) if self.phase == "gathering" else self._ready
        silent = self._roll.silent(answered, first=not self._generation)
        why = f"ranks {silent} did not answer" if self._generation else f"ranks {silent} did not come"
        for rank in sorted(set(self._roll.incarnations) - answered):
            self._expel(rank, "it did not answer in time")
        if self.phase == "forming":
            self._gather(why)
        elif not self._generation and self._config.when_workers_lost == "stop":
            self._stop(f"{why} within {self._config.join_timeout_s:g} s", failed=True)
        elif self._roll.standing:
            self._form()
        else:
            self._stop(why, failed=True)

    def _form(self) -> None:
        """Step 2: a group of all ranks that answered, at the step of the one that is furthest."""
        config, members = self._config, sorted(self._roll.standing)
        self._fruitless += 1
        short = len(members) < config.gradients_per_step
        too_few = f"{len(members)} ranks are left for {config.gradients_per_step} gradients"
        if len(members) < config.min_workers or (short and config.when_workers_lost == "stop"):
            self._stop(f"{too_few} (min_workers {config.min_workers}, {config.when_workers_lost})", failed=True)
            return
        if self._fruitless > MOST_FORMATIONS:
            self._stop(f"{MOST_FORMATIONS} groups broke one after the other without a step", failed=True)
            return
        if short:
            self._note("shrunk", f"{too_few}; steps average {len(members)} from now on")
        source = self._roll.furthest()
        step, data_points = self._roll.standing[source]
        self._generation += 1
        self.phase, self._members, self._ready, self._early = "forming", set(members), set(), []
        self._deadline_s = time.monotonic() + 2 * config.step_timeout_s
        if self._audit is not None:
            self._audit.write("rollback", term=self._generation, step=step, data_points=data_points)
        header = Header(Kind.RESTORE, 0, term=self._generation, step=step, data_points=data_points)
        payload = pack_formation(Formation(members, source, self._store))
        for rank in members:
            self._send(rank, header, payload)

    def _run(self) -> None:
        """Step 3: all members hold the same state."""
        config, now_s = self._config, time.monotonic()
        settings = Settings(
            num_shards=1,
            num_gradients=min(config.gradients_per_step, len(self._members)),
            # Ranks may need one timeout to find out that the sum of the step before has a silent rank in it.
            step_timeout_s=2 * config.step_timeout_s,
            join_timeout_s=config.join_timeout_s,
            when_lost=config.when_workers_lost,
            min_workers=config.min_workers,
        )
        start = max(self._roll.standing.values())
        coordinator = Coordinator(settings, now_s, start)
        for rank in sorted(self._members):
            coordinator.worker_joined(rank, self._roll.incarnations[rank], -1, now_s)
        # The group of replicas is the one server, and their common state its checkpoint.
        coordinator.server_joined(0, 0, now_s)
        coordinator.server_ready(0, coordinator.term, now_s)
        self.phase, self._coordinator = "running", coordinator
        self._note("running", f"{len(self._members)} ranks are at step {coordinator.step}")
        self._stop_when_asked(now_s)
        for rank, header in self._early:
            if self._coordinator is coordinator:
                self._gradient_is_ready(coordinator, rank, header)

    # -- running -------------------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Commit):
                self._fruitless = 0
                self._log_commit(decision)
                header = Header(
                    Kind.COMMIT, 0, term=self._generation, step=decision.step, data_points=decision.data_points
                )
                members = pack_rows(row for row in decision.rows if row.mark & MEMBER)
                for rank in self._members:
                    self._send(rank, header, members)
                self._hub.flush()
                self._stop_when_asked(time.monotonic())
            elif isinstance(decision, Stop):
                self._stop(decision.reason, decision.failed)
            elif isinstance(decision, Note):
                self._note(decision.event, decision.message)

    def _log_commit(self, commit: Commit) -> None:
        if self._audit is not None:
            members = [(row.worker, row.incarnation, row.sequence) for row in commit.rows if row.mark & MEMBER]
            self._audit.commit(commit, members, self._learning_rate(commit.data_points_before))

    def _stop_when_asked(self, now_s: float) -> None:
        if self._coordinator is not None and self.phase == "running":
            reason = self._should_stop(self._coordinator.step, self._coordinator.data_points)
            if reason is not None:
                self._stop(reason, failed=False)

    def _stop(self, reason: str, failed: bool) -> None:
        if self.phase == "stopped":
            return
        self.phase, self._coordinator = "stopped", None
        self._note("stopping", f"stopping: {reason}")
        for rank in self._roll.incarnations:
            self._send(rank, Header(Kind.STOP, 0, code=Code.FAILED if failed else Code.NONE), reason.encode())

    def _expel(self, rank: int, reason: str) -> None:
        self._note("expelled", f"rank {rank} expelled: {reason}")
        self._send(rank, Header(Kind.EXPELLED, 0), reason.encode())
        self._hub.close(Peer(Role.WORKER, rank))
        self._roll.leave(rank)

    def _send(self, rank: int, header: Header, payload: bytes = b"") -> None:
        self._hub.send(Peer(Role.WORKER, rank), header, memoryview(payload))

    def _note(self, event: str, message: str) -> None:
        self._on_event({"event": event, "message": message})
