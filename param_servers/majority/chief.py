"""Who is in the group of a majority all-reduce, and which ranks make a step.

`MajorityCoordinator` decides and is pure: no sockets, no clock.

    gathering   every rank says how far it is; those that do not are expelled
    running     the ranks that answered form a group, and take over the state of the one that is furthest; from then on
                each step is committed as soon as g ranks are ready, and all sum at once
    stopped

Whenever a rank is lost, comes (back), or finds its group broken or impossible to form, everybody gathers again and goes
on from there.

`MajorityChief`, a thread of rank 0, feeds it with what the ranks say and tells them what it decides. No tensors pass
through it. What is said on the links:

    rank -> chief   (headers only)
                    ABORTED   I am in no group (or mine broke); `step`, `data_points`: how far I am
                    GRADIENT  I am in the group of generation `term` and hold its state; my gradient of `step` over
                              `data_points` is ready; `sequence` numbers my pushes
    chief -> rank   ABORTED   leave your group and say how far you are
                    RESTORE   form generation `term` at `step` through the store at port `sequence` of this host;
                              payload: the rows of its members; the one without a mark hands its state to the others
                    COMMIT    sum step `step` now; payload: the rows of its members; `data_points`: in the run, with it
                    EXPELLED  you are out, the payload says why
                    STOP      the run is over, the payload says why; code FAILED when it broke
                    ALIVE     I am here (several times within the step timeout)
"""

import threading
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from param_servers.config import ExchangeConfig
from param_servers.errors import BadMessage, RunBroken, told
from param_servers.exchange import OnEvent, ShouldStop
from param_servers.servers.audit import AuditLog
from param_servers.servers.step_commits import Commit, Expel, Note, StepCommits, Stop
from param_servers.timeouts import LAST_WORDS_S, clock_of_a_loop
from param_servers.wire.frames import Event, Joined, Left, Message, Rejected
from param_servers.wire.handshake import Hello, Lives, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import RECIPIENT, Code, Header, Kind, Row, check_data_points, pack_rows

_LOOK_EVERY_S = 0.05
_MOST_STEP = 1 << 62
MOST_FORMATIONS = 20
"""Groups formed in a row without one committed step between; then the run is broken."""


class LeaveGroup(NamedTuple):
    """All connected ranks leave their group, if they are in one, and say how far they are."""


class FormGroup(NamedTuple):
    """The members form a group and take over the state of `source`, which is at (`step`, `data_points`)."""

    generation: int
    members: tuple[int, ...]
    """Ranks, ascending."""
    source: int
    step: int
    data_points: int


MajorityDecision = LeaveGroup | FormGroup | Commit | Expel | Stop | Note


class MajorityCoordinator:
    """Facts and the time go in, decisions come out, to be carried out in their order.

    Args:
        config: the run's.
        fingerprint: of the layout that all ranks must have.
        now_s: the time, on any monotonic clock; all later times on the same one.
    """

    def __init__(self, config: ExchangeConfig, fingerprint: str, now_s: float) -> None:
        self.phase: Literal["gathering", "running", "stopped"] = "gathering"
        self.connected: dict[int, int] = {}
        """Incarnation by rank."""
        self.generation = 0
        """Of the newest group; 0 before the first one."""
        self.members: set[int] = set()
        """Of that group, without those that are gone since."""
        self._config, self._timeouts, self._fingerprint, self._lives = config, config.timeouts, fingerprint, Lives()
        self._standing: dict[int, tuple[int, int]] = {}
        """(step, data points) of the ranks that have answered since all gather."""
        self._steps: StepCommits | None = None
        """Of this generation, while running."""
        self._fruitless = 0
        self._wait(now_s, self._timeouts.join_s)

    def _wait(self, now_s: float, patience_s: float) -> None:
        """From now on, so long at most until the next thing that is waited for."""
        self._deadline_s, self._patience_s = now_s + patience_s, patience_s

    @property
    def progress(self) -> tuple[int, int] | None:
        """(step, data points) of the members' state, while running."""
        return None if self._steps is None else (self._steps.step, self._steps.data_points)

    # -- who is here ---------------------------------------------------------------------------------------------

    def admits(self, hello: Hello) -> str:
        """ "" or one line why this rank may not join."""
        if hello.fingerprint != self._fingerprint:
            return f"its layout is {hello.fingerprint}, this run's is {self._fingerprint}"
        if hello.role is not Role.WORKER or hello.rank >= self._config.num_workers:
            return f"there is no {hello.peer} in this run of {self._config.num_workers} workers"
        return self._lives.admits(hello)

    def joined(self, rank: int, incarnation: int) -> list[MajorityDecision]:
        """A rank is connected; it counts from when it says how far it is."""
        self.connected[rank] = incarnation
        return [Note("joined", f"rank {rank} joined (incarnation {incarnation})")]

    def left(self, rank: int, reason: str, now_s: float) -> list[MajorityDecision]:
        """A rank's link is gone."""
        if rank not in self.connected:
            return []
        lost = rank in self.members and self.phase == "running"
        self._remove(rank)
        note = Note("left", f"rank {rank} left: {reason}")
        if lost:
            return [note, *self._gather(f"rank {rank} is lost", now_s)]
        return [note, *(self._form_when_complete(now_s) if self.generation else [])]

    def stands(self, rank: int, generation: int, step: int, data_points: int, now_s: float) -> list[MajorityDecision]:
        """A rank is in no group, or its group of `generation` broke, and it is at (`step`, `data_points`)."""
        newcomer = rank not in self.members
        if self.phase == "stopped" or rank not in self.connected or (not newcomer and generation != self.generation):
            return []
        decisions: list[MajorityDecision] = []
        if self.phase != "gathering":
            decisions = self._gather(f"rank {rank} {'came' if newcomer else 'found its group broken'}", now_s)
        self._standing[rank] = (step, data_points)
        return decisions + self._form_when_complete(now_s)

    def _remove(self, rank: int) -> int:
        """A connected rank is gone; its incarnation. Should it come back before the next group, it is a newcomer."""
        self.members.discard(rank)
        self._standing.pop(rank, None)
        return self.connected.pop(rank)

    # -- gathering and forming -----------------------------------------------------------------------------------

    def _gather(self, why: str, now_s: float) -> list[MajorityDecision]:
        self.phase, self._steps = "gathering", None
        self._standing.clear()
        self._wait(now_s, self._timeouts.group_s)
        return [Note("regrouping", f"{why}; the others form a new group"), LeaveGroup()]

    def _form_when_complete(self, now_s: float) -> list[MajorityDecision]:
        """All who are connected have answered; the first time, all ranks of the run have to be connected."""
        enough = len(self.connected) >= (1 if self.generation else self._config.num_workers)
        complete = self.phase == "gathering" and enough and set(self.connected) == set(self._standing)
        return self._form(now_s) if complete else []

    def _form(self, now_s: float, why: str = "") -> list[MajorityDecision]:
        """A group of all ranks that answered, at the step of the one that is furthest (the lowest of them). `why`: who
        did not answer."""
        config, members, wanted = self._config, sorted(self._standing), self._config.gradients_per_step
        self._fruitless += 1
        short = len(members) < wanted
        too_few = f"{len(members)} ranks are left for {wanted} gradients{why and f': {why}'}"
        if len(members) < config.min_workers:
            return self.stop(f"{too_few} (min_workers {config.min_workers})", failed=True)
        if self._fruitless > MOST_FORMATIONS:
            return self.stop(f"{MOST_FORMATIONS} groups broke one after the other without a step", failed=True)
        source = max(members, key=lambda rank: (self._standing[rank][0], -rank))
        self.generation += 1
        self.phase, self.members = "running", set(members)
        self._steps = StepCommits(1, min(wanted, len(members)), self._standing[source], self.generation)
        for member in members:
            self._steps.joined(member, self.connected[member])
        self._wait(now_s, self._timeouts.join_s)
        shrunk = [Note("shrunk", f"{too_few}; steps average {len(members)} from now on")] if short else []
        running = Note("running", f"{len(members)} ranks go on from step {self._steps.step}")
        return [*shrunk, running, FormGroup(self.generation, tuple(members), source, *self._standing[source])]

    # -- running -------------------------------------------------------------------------------------------------

    def gradient(
        self, rank: int, generation: int, sequence: int, step: int, data_points: int, now_s: float
    ) -> list[MajorityDecision]:
        """A rank of the group of `generation` has a gradient of `step` ready."""
        if generation != self.generation or self._steps is None or rank not in self.members:
            return []
        arrived = self._steps.arrived(0, Row(rank, self.connected[rank], sequence), step, data_points)
        commits = [decision for decision in arrived if isinstance(decision, Commit)]
        if commits:
            self._fruitless = 0
            self._wait(now_s, self._timeouts.group_s)
        return [*commits]

    # -- time and the end ----------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[MajorityDecision]:
        """Look at the clock: nothing is waited for longer than stated."""
        if self.phase == "stopped" or now_s <= self._deadline_s:
            return []
        if self._steps is None:
            return self._go_on_without_the_silent(now_s)
        reason = f"no gradient for step {self._steps.step} within {self._patience_s:g} s"
        late = [each for each in self._steps.expel_the_late(reason) if isinstance(each, Expel)]
        for expel in late:
            self._remove(expel.worker)
        return [*late, *self._gather("a step did not end in time", now_s)]

    def _go_on_without_the_silent(self, now_s: float) -> list[MajorityDecision]:
        expected = set(self.connected) if self.generation else set(range(self._config.num_workers))
        why = f"ranks {sorted(expected - set(self._standing))} did not {'answer' if self.generation else 'come'}"
        silent = sorted(set(self.connected) - set(self._standing))
        expelled = [Expel(rank, self._remove(rank), "it did not answer in time") for rank in silent]
        why += f" within {self._patience_s:g} s"
        return [*expelled, *(self._form(now_s, why) if self._standing else self.stop(why, failed=True))]

    def stop(self, reason: str, failed: bool) -> list[MajorityDecision]:
        """End the run: all ranks that are connected are told."""
        if self.phase == "stopped":
            return []
        self.phase, self._steps = "stopped", None
        return [Note("stopping", f"stopping: {reason}"), Stop(reason, failed)]


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
            self._on_event({"event": "rejected", "message": f"chief: {event.reason}", "number": event.number})

    def _hear(self, rank: int, header: Header, now_s: float) -> None:
        coordinator, generation, step, data_points = self._coordinator, header.term, header.step, header.data_points
        if header.kind == Kind.ABORTED:
            self._carry_out(coordinator.stands(rank, generation, step, data_points, now_s))
        elif header.kind == Kind.GRADIENT:
            self._carry_out(coordinator.gradient(rank, generation, header.sequence, step, data_points, now_s))

    def _end_if_left_alone(self, rank: int, now_s: float) -> None:
        """A rank's link is gone. When rank 0 has just been stopped and nobody else is left, the others have lost it."""
        alone = set(self._coordinator.connected) == {0, rank}
        if rank and alone and now_s - self._clock.woke_s < self._timeouts.step_s:
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
                self._send([decision.worker], Header(Kind.EXPELLED, 0), decision.reason.encode())
                self._hub.close(Peer(Role.WORKER, decision.worker))
            elif isinstance(decision, Stop):
                code = Code.FAILED if decision.failed else Code.NONE
                writer = min(self._coordinator.connected, default=0)  # of the last checkpoint
                self._end = Header(Kind.STOP, 0, sequence=writer, code=code), decision.reason.encode()
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
