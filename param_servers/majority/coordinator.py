"""Who is in the group of a majority all-reduce, and which ranks make a step. Pure: no sockets, no clock.

    gathering   every rank says how far it is; those that do not are expelled
    running     the ranks that answered form a group, and take over the state of the one that is furthest; from then on
                each step is committed as soon as g ranks are ready, and all sum at once
    stopped

Whenever a rank is lost, comes (back), or finds its group broken or impossible to form, everybody gathers again and goes
on from there.
"""

from typing import Literal, NamedTuple

from param_servers.config import ExchangeConfig
from param_servers.servers.step_commits import Commit, Expel, Note, StepCommits, Stop
from param_servers.wire.handshake import Hello, Lives, Role
from param_servers.wire.messages import Row

MOST_BROKEN = 20
"""Groups in a row that broke without one committed step; then the run is broken. One that made room for a rank that
came did not break."""


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
        self._broke, self._fruitless = False, 0
        """Whether the newest group broke, and how many in a row did without a step."""
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
            return [note, *self._gather(f"rank {rank} is lost", now_s, broke=True)]
        return [note, *(self._form_when_complete(now_s) if self.generation else [])]

    def stands(self, rank: int, generation: int, step: int, data_points: int, now_s: float) -> list[MajorityDecision]:
        """A rank is in no group, or its group of `generation` broke, and it is at (`step`, `data_points`)."""
        newcomer = rank not in self.members
        if self.phase == "stopped" or rank not in self.connected or (not newcomer and generation != self.generation):
            return []
        decisions: list[MajorityDecision] = []
        if self.phase != "gathering":
            why = "came" if newcomer else "found its group broken"
            decisions = self._gather(f"rank {rank} {why}", now_s, broke=not newcomer)
        self._standing[rank] = (step, data_points)
        return decisions + self._form_when_complete(now_s)

    def _remove(self, rank: int) -> int:
        """A connected rank is gone; its incarnation. Should it come back before the next group, it is a newcomer."""
        self._broke |= self.phase == "gathering"
        self.members.discard(rank)
        self._standing.pop(rank, None)
        return self.connected.pop(rank)

    # -- gathering and forming -----------------------------------------------------------------------------------

    def _gather(self, why: str, now_s: float, broke: bool) -> list[MajorityDecision]:
        self.phase, self._steps, self._broke = "gathering", None, broke
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
        self._fruitless += bool(self.generation and self._broke)
        short = len(members) < wanted
        too_few = f"{len(members)} ranks are left for {wanted} gradients{why and f': {why}'}"
        if len(members) < config.min_workers:
            return self.stop(f"{too_few} (min_workers {config.min_workers})", failed=True)
        if self._fruitless >= MOST_BROKEN:
            return self.stop(f"{MOST_BROKEN} groups broke one after the other without a step", failed=True)
        source = max(members, key=lambda rank: (self._standing[rank][0], -rank))
        self.generation += 1
        self.phase, self.members = "running", set(members)
        self._steps = StepCommits(1, min(wanted, len(members)), self._standing[source], self.generation)
        for member in members:
            self._steps.joined(member, self.connected[member])
        self._wait(now_s, self._timeouts.first_group_s)
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
        return [*late, *self._gather("a step did not end in time", now_s, broke=True)]

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
