"""Who is in the group of a majority all-reduce, and which ranks make a step. Pure: no sockets, no clock.

    gathering   every rank says how far it is; those that do not are expelled
    forming     the ranks that answered form a group, and take over the state of the one that is furthest
    running     each step is committed as soon as g ranks are ready; all sum at once
    stopped

Whenever a rank is lost, comes (back), or finds its group broken, everybody gathers again and goes on from there.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from param_servers.config import ExchangeConfig
from param_servers.majority.decisions import Began, FormGroup, LeaveGroup, MajorityDecision
from param_servers.majority.roll_call import RollCall
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.decisions import Commit, Decision, Expel, Note, Settings, Stop
from param_servers.wire.messages import Row

MOST_FORMATIONS = 20
"""Groups formed in a row without one committed step between; then the run is broken."""


class MajorityCoordinator:
    """Facts and the time go in, decisions come out, to be carried out in their order.

    Args:
        config: the run's.
        fingerprint: of the layout that all ranks must have.
        now_s: the time, on any monotonic clock; all later times on the same one.
    """

    def __init__(self, config: ExchangeConfig, fingerprint: str, now_s: float) -> None:
        self.phase: Literal["gathering", "forming", "running", "stopped"] = "gathering"
        self.roll = RollCall(config.num_workers, fingerprint)
        self.generation = 0
        """Of the newest group; 0 before the first one."""
        self.members: set[int] = set()
        """Of that group, without those that are gone since."""
        self._config = config
        self._coordinator: Coordinator | None = None
        """Of the steps of this generation, while running."""
        self._ready: set[int] = set()
        self._early: list[tuple[Row, int, int]] = []
        """Gradients (push, step, data points) that were ready before the last rank had joined the group."""
        self._fruitless = 0
        self._timeouts = config.timeouts
        self._deadline_s = now_s + self._timeouts.first_step_s

    @property
    def progress(self) -> tuple[int, int] | None:
        """(step, data points) that all members have reached, while running."""
        return None if self._coordinator is None else (self._coordinator.step, self._coordinator.data_points)

    # -- who is here ---------------------------------------------------------------------------------------------

    def joined(self, rank: int, incarnation: int) -> list[MajorityDecision]:
        """A rank is connected; it counts from when it says how far it is."""
        self.roll.incarnations[rank] = incarnation
        return [Note("joined", f"rank {rank} joined (incarnation {incarnation})")]

    def left(self, rank: int, reason: str, now_s: float) -> list[MajorityDecision]:
        """A rank's link is gone."""
        lost = rank in self.members and self.phase in ("forming", "running")
        if not self._remove(rank):
            return []
        note = Note("left", f"rank {rank} left: {reason}")
        if lost:
            return [note, *self._gather(f"rank {rank} is lost", now_s)]
        if self.phase == "gathering" and self.generation:
            return [note, *self._form_when_complete(now_s)]
        return [note]

    def stands(self, rank: int, generation: int, step: int, data_points: int, now_s: float) -> list[MajorityDecision]:
        """A rank is in no group, or its group of `generation` broke, and it is at (`step`, `data_points`)."""
        newcomer = rank not in self.members
        if self.phase == "stopped" or (not newcomer and generation != self.generation):
            return []
        decisions: list[MajorityDecision] = []
        if self.phase != "gathering":
            decisions = self._gather(f"rank {rank} {'came' if newcomer else 'found its group broken'}", now_s)
        self.roll.standing[rank] = (step, data_points)
        return decisions + self._form_when_complete(now_s)

    def _expel(self, rank: int, reason: str) -> Expel:
        incarnation = self.roll.incarnations[rank]
        self._remove(rank)
        return Expel(rank, incarnation, reason)

    def _remove(self, rank: int) -> bool:
        """A rank is gone; whether it was connected. Should it come back before the next group, it is a newcomer."""
        self.members.discard(rank)
        return self.roll.leave(rank)

    # -- gathering and forming -----------------------------------------------------------------------------------

    def _gather(self, why: str, now_s: float) -> list[MajorityDecision]:
        self.phase, self._coordinator = "gathering", None
        self.roll.standing.clear()
        self._deadline_s = now_s + self._timeouts.regroup_s
        return [Note("regrouping", f"{why}; the others form a new group"), LeaveGroup(self.generation)]

    def _form_when_complete(self, now_s: float) -> list[MajorityDecision]:
        complete = self.phase == "gathering" and self.roll.complete(first=not self.generation)
        return self._form(now_s) if complete else []

    def _form(self, now_s: float) -> list[MajorityDecision]:
        """A group of all ranks that answered, at the step of the one that is furthest."""
        config, members = self._config, sorted(self.roll.standing)
        self._fruitless += 1
        short = len(members) < config.gradients_per_step
        too_few = f"{len(members)} ranks are left for {config.gradients_per_step} gradients"
        if len(members) < config.min_workers or (short and config.when_workers_lost == "stop"):
            return self.stop(f"{too_few} (min_workers {config.min_workers}, {config.when_workers_lost})", failed=True)
        if self._fruitless > MOST_FORMATIONS:
            return self.stop(f"{MOST_FORMATIONS} groups broke one after the other without a step", failed=True)
        source = self.roll.furthest()
        self.generation += 1
        self.phase, self.members, self._ready, self._early = "forming", set(members), set(), []
        self._deadline_s = now_s + self._timeouts.regroup_s
        form = FormGroup(self.generation, tuple(members), source, *self.roll.standing[source])
        return [*([Note("shrunk", f"{too_few}; steps average {len(members)} from now on")] if short else []), form]

    def ready(self, rank: int, generation: int, now_s: float) -> list[MajorityDecision]:
        """A rank is in the group and holds its state."""
        if generation != self.generation or self.phase != "forming":
            return []
        self._ready.add(rank)
        return self._begin(now_s) if self._ready == self.members else []

    def _begin(self, now_s: float) -> list[MajorityDecision]:
        """All members hold the same state."""
        config = self._config
        settings = Settings(
            num_shards=1,
            num_gradients=min(config.gradients_per_step, len(self.members)),
            timeouts=self._timeouts,
            sums=True,
            when_lost=config.when_workers_lost,
            min_workers=config.min_workers,
        )
        coordinator = Coordinator(settings, now_s, max(self.roll.standing.values()))
        for rank in sorted(self.members):
            coordinator.worker_joined(rank, self.roll.incarnations[rank], -1, now_s)
        # The group of replicas is the one server, and their common state its checkpoint.
        coordinator.server_joined(0, 0, now_s)
        coordinator.server_ready(0, coordinator.term, now_s)
        self.phase, self._coordinator = "running", coordinator
        return [Began(f"{len(self.members)} ranks are at step {coordinator.step}")]

    # -- running -------------------------------------------------------------------------------------------------

    def gradient(
        self, rank: int, generation: int, sequence: int, step: int, data_points: int, now_s: float
    ) -> list[MajorityDecision]:
        """A rank of the group of `generation` has a gradient of `step` ready."""
        row = Row(rank, self.roll.incarnations.get(rank, 0), sequence)
        if generation == self.generation and self.phase == "forming":
            self._early.append((row, step, data_points))
        elif generation == self.generation:
            return self._count(row, step, data_points, now_s)
        return []

    def count_early(self, now_s: float) -> Iterator[list[MajorityDecision]]:
        """After `Began`: count the gradients that were ready before, each when what the last one led to is done."""
        early, self._early = self._early, []
        for push in early:
            yield self._count(*push, now_s)

    def _count(self, row: Row, step: int, data_points: int, now_s: float) -> list[MajorityDecision]:
        if self._coordinator is None:
            return []
        return self._as_ours(self._coordinator.arrived(0, row, step, data_points, self._coordinator.term, now_s))

    def _as_ours(self, decisions: Iterable[Decision]) -> list[MajorityDecision]:
        """What the coordinator of the steps decides, as far as it means something to a group of replicas."""
        ours: list[MajorityDecision] = []
        for decision in decisions:
            if isinstance(decision, Commit):
                self._fruitless = 0
            if isinstance(decision, Stop):
                ours += self.stop(decision.reason, decision.failed)
            elif isinstance(decision, Commit | Note):
                ours.append(decision)
        return ours

    # -- time and the end ----------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[MajorityDecision]:
        """Look at the clock: nothing is waited for longer than stated."""
        if self._coordinator is not None:
            decisions = self._coordinator.tick(now_s)
            late = [decision for decision in decisions if isinstance(decision, Expel)]
            if not late:
                return self._as_ours(decisions)
            expelled = [self._expel(decision.worker, decision.reason) for decision in late]
            return [*expelled, *self._gather("a step did not end in time", now_s)]
        if self.phase in ("gathering", "forming") and now_s > self._deadline_s:
            return self._go_on_without_the_silent(now_s)
        return []

    def _go_on_without_the_silent(self, now_s: float) -> list[MajorityDecision]:
        answered = set(self.roll.standing) if self.phase == "gathering" else self._ready
        silent = self.roll.silent(answered, first=not self.generation)
        why = f"ranks {silent} did not answer" if self.generation else f"ranks {silent} did not come"
        connected = set(self.roll.incarnations)
        expelled = [self._expel(rank, "it did not answer in time") for rank in sorted(connected - answered)]
        if self.phase == "forming":
            return [*expelled, *self._gather(why, now_s)]
        if not self.generation and self._config.when_workers_lost == "stop":
            return [*expelled, *self.stop(f"{why} within {self._timeouts.first_step_s:g} s", failed=True)]
        return [*expelled, *(self._form(now_s) if self.roll.standing else self.stop(why, failed=True))]

    def stop(self, reason: str, failed: bool) -> list[MajorityDecision]:
        """End the run: all ranks that are connected are told."""
        if self.phase == "stopped":
            return []
        self.phase, self._coordinator = "stopped", None
        return [Note("stopping", f"stopping: {reason}"), Stop(reason, failed)]
