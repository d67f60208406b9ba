"""A thread of rank 0 that feeds the coordinator of a majority with what the ranks say, and tells them what it decides.

No tensors pass through it. What is said on the links:

    rank -> chief   (headers only)
                    ABORTED   I am in no group (or mine broke); `step`, `data_points`: how far I am
                    GRADIENT  I am in the group of generation `term` and hold its state; my gradient of `step`, which
                              brings `data_points`, is ready; `sequence` numbers my pushes
    chief -> rank   ABORTED   leave your group and say how far you are
                    RESTORE   form generation `term` at `step` through the store at port `sequence` of this host;
                              payload: the rows of its members; the one without a mark hands its state to the others
                    COMMIT    sum step `step` now; payload: the rows of its members; `data_points`: in the run, with it
                    EXPELLED  you are out, the payload says why
                    STOP      the run is over, `step` updates long, the payload says why; code FAILED when it broke
                    ALIVE     I am here (several times within the step timeout)
"""

import threading
from collections.abc import Callable, Iterable

from param_servers.config import ExchangeConfig
from param_servers.errors import BadMessage, RunBroken, told
from param_servers.exchange import OnEvent, ShouldStop
from param_servers.majority.coordinator import FormGroup, LeaveGroup, MajorityCoordinator, MajorityDecision
from param_servers.servers.audit import AuditLog
from param_servers.servers.step_commits import Commit, Expel, Note, Stop
from param_servers.timeouts import LAST_WORDS_S, clock_of_a_loop
from param_servers.wire.frames import Event, Joined, Left, Message, Rejected
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import RECIPIENT, Code, Header, Kind, Row, bytes_of, check_data_points, pack_rows

_LOOK_EVERY_S = 0.05
_MOST_STEP = 1 << 62


class MajorityChief:
    """The coordinator's ears and hands.

    Args:
        config: the run's; `fingerprint` is that of its layout.
        secret: every rank must prove to know it.
        store_port: where the key-value store listens, on the chief's host; groups find each other through it.
        learning_rate: of the step that begins with so many data points committed, for the audit log.
        should_stop: asked after each committed step, and again and again.
        on_event: called with {"event", "message"}.
        audit: closed when the run has ended; None: no log.
    """

    def __init__(
        self,
        *,
        config: ExchangeConfig,
        fingerprint: str,
        secret: bytes,
        store_port: int,
        learning_rate: Callable[[int], float],
        should_stop: ShouldStop,
        on_event: OnEvent,
        audit: AuditLog | None,
    ) -> None:
        self._clock = clock_of_a_loop(config.step_timeout_s)
        self._coordinator = MajorityCoordinator(config, fingerprint, self._clock.now_s())
        self._progress = 0, 0
        """(step, data points) of the members' state, when it was last known."""
        self._known_s = self._clock.now_s()
        self._store_port, self._learning_rate, self._should_stop = store_port, learning_rate, should_stop
        self._on_event, self._audit = on_event, audit
        self._timeouts, self._alive_s = config.timeouts, 0.0
        self._hub = Hub(secret, no_payload, admit=self._coordinator.admits, silence_timeout_s=self._timeouts.silence_s)
        self._end: tuple[Header, bytes] | None = None
        """What ranks are told when the run is over."""

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the door; returns the address."""
        return self._hub.listen(host, port)

    def run(self, given_up: threading.Event) -> None:
        """Decide until the run has ended, or nobody wants it any more."""
        try:
            try:
                self._decide(given_up)
            except BaseException as error:  # all ranks are told, not this thread
                self._carry_out([Stop(f"rank 0 cannot decide any more: {told(error)}", failed=True)])
            self._hub.drain(LAST_WORDS_S, self._tell_end)
        finally:
            self._hub.shut()
            if self._audit is not None:
                self._audit.close()

    def _decide(self, given_up: threading.Event) -> None:
        while self._coordinator.phase != "stopped" and not given_up.is_set():
            for event in self._hub.poll(_LOOK_EVERY_S):
                self._handle(event, self._clock.now_s())
            now_s = self._clock.now_s()
            self._carry_out(self._coordinator.tick(now_s))
            self._stop_when_asked()
            if now_s >= self._alive_s:  # a stopped process's kernel still answers for its links: only words show life
                self._alive_s = now_s + self._timeouts.alive_every_s
                self._send_all(Header(Kind.ALIVE, 0))

    # -- what is heard -------------------------------------------------------------------------------------------

    def _handle(self, event: Event, now_s: float) -> None:
        if isinstance(event, Message):
            try:
                check_standing(event.header)
            except BadMessage as error:
                self._hub.close(event.peer)
                event = Left(event.peer, str(error))
        if isinstance(event, Message):
            self._hear(event.peer.rank, event.header, now_s)
        elif isinstance(event, Joined):
            self._carry_out(self._coordinator.joined(event.peer.rank, event.hello.incarnation))
        elif isinstance(event, Left):
            self._end_if_left_alone(event.peer.rank, now_s)
            self._carry_out(self._coordinator.left(event.peer.rank, event.reason, now_s))
        elif isinstance(event, Rejected):
            self._on_event({"event": "rejected", "message": f"chief: {event.reason}"})

    def _hear(self, rank: int, header: Header, now_s: float) -> None:
        coordinator, generation, step, data_points = self._coordinator, header.term, header.step, header.data_points
        if header.kind == Kind.ABORTED:
            self._carry_out(coordinator.stands(rank, generation, step, data_points, now_s))
        elif header.kind == Kind.GRADIENT:
            self._carry_out(coordinator.gradient(rank, generation, header.sequence, step, data_points, now_s))

    def _end_if_left_alone(self, rank: int, now_s: float) -> None:
        """A rank's link is gone. When rank 0 has just been stopped, for about as long as the most impatient of the
        others wait (`silence_s`, on clocks of their own), and nobody else is left, they have lost it."""
        alone = set(self._coordinator.connected) == {0, rank}
        could_leave = self._clock.slept_s > self._timeouts.silence_s / 2
        just_woke = now_s - self._clock.woke_s < self._timeouts.step_s
        if rank and alone and could_leave and just_woke:
            why = f"rank 0 was stopped for {self._clock.slept_s:.0f} s, and the others have ended the run without it"
            self._carry_out(self._coordinator.stop(why, failed=True))

    def _stop_when_asked(self) -> None:
        now_s, progress = self._clock.now_s(), self._coordinator.progress
        if progress is not None:
            self._progress, self._known_s = progress, now_s
        elif self._coordinator.phase == "stopped" or now_s - self._known_s < LAST_WORDS_S:
            return  # ranks are on their way, and are to hear of the end
        try:
            reason, broken = self._should_stop(*self._progress), False
        except RunBroken as error:  # no steps are lost by it, and all are told
            reason, broken = str(error), True
        if reason is not None:
            self._carry_out(self._coordinator.stop(reason, failed=broken))

    # -- what is decided -----------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[MajorityDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, Commit):
                self._commit(decision)
            elif isinstance(decision, LeaveGroup):
                self._send_all(Header(Kind.ABORTED, 0))
            elif isinstance(decision, FormGroup):
                self._form(decision)
            elif isinstance(decision, Expel):
                self._note(Note("expelled", f"rank {decision.worker} expelled: {decision.reason}"))
                self._send([decision.worker], Header(Kind.EXPELLED, 0), bytes_of(decision.reason))
                self._hub.close(Peer(Role.WORKER, decision.worker))
            elif isinstance(decision, Stop):
                code = Code.FAILED if decision.failed else Code.NONE
                writer = min(self._coordinator.connected, default=0)  # of the last checkpoint
                header = Header(Kind.STOP, 0, step=self._progress[0], sequence=writer, code=code)
                self._end = header, bytes_of(decision.reason)
                self._send_all(*self._end)
            elif isinstance(decision, Note):
                self._note(decision)

    def _commit(self, commit: Commit) -> None:
        if self._audit is not None:
            self._audit.commit(commit, self._learning_rate(commit.data_points_before))
        header = Header(Kind.COMMIT, 0, term=commit.term, step=commit.step, data_points=commit.data_points)
        self._send(self._coordinator.members, header, pack_rows(commit.members))
        self._hub.flush()
        self._stop_when_asked()

    def _form(self, form: FormGroup) -> None:
        generation, members, source, step, data_points = form
        if self._audit is not None:
            self._audit.write("rollback", term=generation, step=step, data_points=data_points)
        header = Header(Kind.RESTORE, 0, term=generation, step=step, sequence=self._store_port, data_points=data_points)
        rows = [Row(rank, self._coordinator.connected[rank], 0, 0 if rank == source else RECIPIENT) for rank in members]
        self._send(members, header, pack_rows(rows))
        self._stop_when_asked()  # the run may have reached its end in an earlier life

    def _send_all(self, header: Header, payload: bytes = b"") -> None:
        """To every rank that is connected, in a group or not."""
        self._send(self._coordinator.connected, header, payload)

    def _send(self, ranks: Iterable[int], header: Header, payload: bytes) -> None:
        for rank in ranks:
            self._hub.send(Peer(Role.WORKER, rank), header, memoryview(payload))

    def _tell_end(self, late: Peer) -> None:
        if self._end is not None:
            self._send([late.rank], *self._end)

    def _note(self, note: Note) -> None:
        self._on_event({"event": note.event, "message": note.message})


def check_standing(header: Header) -> None:
    """Whether a rank can be where it says it is, or give what it says it gives.

    Raises:
        BadMessage: it cannot; the chief would hand on numbers that do not fit into a header.
    """
    if not (0 <= header.step <= _MOST_STEP and 0 <= header.data_points <= _MOST_STEP):
        raise BadMessage(f"it claims to be at step {header.step} with {header.data_points} data points")
    if header.kind == Kind.GRADIENT:
        check_data_points(header.data_points)


def no_payload(peer: Peer, header: Header) -> memoryview:
    """The chief's `receive_into`: ranks only send headers."""
    raise BadMessage(f"an unexpected {header.kind.name} of {header.length} bytes")
