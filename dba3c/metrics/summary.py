"""What a run's records add up to, beside what config.json and meta.json say of it: its stop score, cores, lives.

`RunSummary` is pure: records in, numbers out; no clock, no files.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dba3c.metrics.facts import RunFacts
from dba3c.metrics.reader import Record
from dba3c.metrics.registry import SECTIONS
from dba3c.runs.folder import CLOCKS_S

HEARD_OF_S = 10.0
LEAST_HORIZON_S = 10.0
MOST_NAMED = 6
MOSTLY_ENDED = 0.8
"""Share of a life's steps that must lie in games that have ended, before the mean of its last games counts: all
environments begin at once, and the first games to end are the shortest."""
_COUNTS = ("accepted", "dropped", "rejected", "agent_steps", "frames", "data_points", "commits", "stale")
_TRAINERS = ("worker", "learner", "actor")


class Scores:
    """Scores of finished games, in the order in which they ended."""

    def __init__(self, games: int = 50) -> None:
        self.window: deque[float] = deque(maxlen=games)
        self.count = 0
        self.best: float | None = None

    def add(self, score: float) -> None:
        self.window.append(score)
        self.count += 1
        self.best = score if self.best is None else max(self.best, score)

    @property
    def mean(self) -> float | None:
        """Mean of the last games, None before the first."""
        return sum(self.window) / len(self.window) if self.window else None

    @property
    def max(self) -> float | None:
        return max(self.window, default=None)

    @property
    def full(self) -> bool:
        """Whether there are as many games as the mean asks for."""
        return len(self.window) == self.window.maxlen


def _whose(record: Record) -> object:
    """The process, and of a worker the lane, that has written a record."""
    return record.get("file", (record["role"], record["rank"]))


class RecentSums:
    """Amounts that came in, by name, summed over the last `horizon_s` seconds."""

    def __init__(self) -> None:
        self.horizon_s = LEAST_HORIZON_S
        self._entries: deque[tuple[float, float, Mapping[str, float]]] = deque()  # (end, beginning, amounts)
        self._forgotten_s = -math.inf  # the end of the newest window that was forgotten
        self._windows_s: dict[object, float] = {}  # the newest of each lane
        self._sums: dict[str, float] = {}

    def add(self, time_s: float, amounts: Mapping[str, float], window_s: float = 0.0, whose: object = None) -> None:
        """Amounts of the `window_s` seconds before `time_s`. `whose`: of several lanes, each has its own."""
        self._windows_s[whose] = window_s
        # long windows need a longer look, while they are long
        self.horizon_s = max(LEAST_HORIZON_S, 3.0 * max(self._windows_s.values()))
        if self._entries and time_s < self._entries[-1][0] - self.horizon_s:
            self._entries.clear()  # a clock was set back: what came before lies in a future that must not be waited for
            self._sums.clear()
            self._forgotten_s = -math.inf
        self._entries.append((time_s, time_s - window_s, amounts))
        for name, amount in amounts.items():
            self._sums[name] = self._sums.get(name, 0.0) + amount
        self._forget_before(time_s - self.horizon_s)

    def _forget_before(self, time_s: float) -> None:
        while self._entries and self._entries[0][0] <= time_s:
            self._forgotten_s, _, amounts = self._entries.popleft()
            for name, amount in amounts.items():
                self._sums[name] -= amount
        if not self._entries:
            self._sums.clear()  # no rounding error is carried through an idle time

    def sums(self, now_s: float) -> dict[str, float]:
        """Sums of the horizon before `now_s`, by name."""
        self._forget_before(now_s - self.horizon_s)
        return {name: max(0.0, amount) for name, amount in self._sums.items()}

    def per_second(self, now_s: float, name: str) -> float:
        """The rate of one amount over the horizon's windows; it falls once the next window should have come.

        Windows of several lanes overlap: they count for the time since the last one that is forgotten ended.
        """
        total = self.sums(now_s).get(name, 0.0)
        if not total:
            return 0.0
        (_, first_s, _), (newest_s, newest_begin_s, _) = self._entries[0], self._entries[-1]
        first_s = max(first_s, self._forgotten_s)
        overdue_s = max(0.0, now_s - newest_s - (newest_s - newest_begin_s))
        return total / max(1e-3, newest_s + overdue_s - first_s)


@dataclass
class ProcessState:
    """What one process of the run has done, over all its incarnations."""

    role: str
    rank: int
    incarnation: int = 0
    last_time_s: float = 0.0
    stepped_s: float = 0.0
    """When it last trained or played."""
    totals: dict[str, float] = field(default_factory=dict)  # since the run began; of sections as "section:NAME"
    recent: RecentSums = field(default_factory=RecentSums)
    told_cpu_s: float = 0.0
    """Processor time that events have told since the last window; part of the next one's."""
    latest: dict[str, float] = field(default_factory=dict)  # newest value of each number it records
    scores: Scores = field(default_factory=Scores)

    @property
    def name(self) -> str:
        return f"{self.role}-{self.rank}"

    def is_silent(self, now_s: float, after_s: float) -> bool:
        """Whether nothing came for `after_s`; for longer where its records are rarer than that."""
        return now_s - self.last_time_s > max(after_s, self.recent.horizon_s)

    def add(self, record: Record) -> None:
        counted_in_steps = record["kind"] == "server" and self.role != "server"  # without servers a worker tells both
        names = [name for name in (*_COUNTS, "cpu_s") if not (counted_in_steps and name == "rejected")]
        amounts = {name: float(record[name]) for name in names if record.get(name)}
        amounts |= {f"section:{name}": seconds for name, seconds in (record.get("sections_s") or {}).items()}
        for name, amount in amounts.items():
            self.totals[name] = self.totals.get(name, 0.0) + amount
        amounts["cpu_s"] = amounts.get("cpu_s", 0.0) + self.told_cpu_s
        self.told_cpu_s = 0.0
        self.recent.add(record["time_s"], amounts, record.get("window_s", 0.0), _whose(record))
        self.latest.update((name, value) for name, value in record.items() if isinstance(value, (int, float)))

    def section_shares(self, now_s: float) -> dict[str, float]:
        """Share of each section in the timed seconds of the horizon; of the whole run when it has been silent."""
        return section_shares(self.recent.sums(now_s)) or section_shares(self.totals)

    def dropped_share(self, now_s: float) -> float | None:
        return dropped_share(self.recent.sums(now_s))


class RunSummary:
    """The state of a run after the records that were added to it."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.scores = Scores(facts.stop_games)
        self.life_scores = Scores(facts.stop_games)
        """Of the newest life since its last roll-back: games before may be of parameters that were lost."""
        self.best_mean: float | None = None
        """The highest `life_mean`, of any life."""
        self._life_mean: float | None = None
        self._steps = self._ended_steps = 0
        """Of the newest life: agent steps, and those of games that have ended."""
        self._told_steps: dict[object, int] = {}
        """Of games that have ended since the newest steps of their process, or lane."""
        self.processes: dict[tuple[str, int], ProcessState] = {}
        self.step = 0
        self.newest_s = 0.0
        self.data_points_committed = 0.0  # as the servers count it: taken back when a run resumes from a checkpoint
        self.told: deque[Record] = deque(maxlen=1000)
        """Events and evaluations, the newest: as many as may come between two looks."""
        self.told_in_all = 0
        self.evaluation: Record | None = None
        """The newest; None before the first."""
        self.not_finite: dict[str, int] = {}
        self.life_begins = False
        """No step of the newest life was told yet: `step` may be one that a crash has lost."""
        self._last_seen_s: list[float] = []

    def add(self, record: Record) -> None:
        """One record, in the order of time."""
        time_s, kind = record["time_s"], record["kind"]
        self.newest_s = max(self.newest_s, time_s)
        self._note_life(record)
        process = self._process(record)
        process.last_time_s, process.incarnation = time_s, int(record.get("incarnation") or 0)
        for name, count in (record.get("not_finite") or {}).items():
            self.not_finite[name] = self.not_finite.get(name, 0) + count
        if kind in ("step", "server"):
            points = record.get("data_points_total") or 0.0
            rolled_back = 0 < points < process.latest.get("data_points_total", 0)
            process.add(record)
            if rolled_back:
                self._forget_games(games_go_on=True)
            if kind == "step":
                process.stepped_s = time_s
                self._steps += record.get("agent_steps") or 0
                self._ended_steps += self._told_steps.pop(_whose(record), 0)
            self.step = record["step"] if self.life_begins or rolled_back else max(self.step, record["step"])
            self.life_begins = False
            self.data_points_committed = points or self.data_points_committed
        elif spent_s := record.get("cpu_s"):  # those who only evaluate or film record no steps
            process.totals["cpu_s"] = process.totals.get("cpu_s", 0.0) + spent_s
            process.told_cpu_s += spent_s
        if kind == "episode":  # counts with its process's next steps, among which its own are
            steps, key = record.get("length_steps") or 0, _whose(record)
            self._told_steps[key] = self._told_steps.get(key, 0) + steps
        if kind == "episode" and record.get("score") is not None:
            self.scores.add(record["score"])
            self.life_scores.add(record["score"])
            process.scores.add(record["score"])
        elif kind in ("event", "evaluation"):
            self.told.append(record)
            self.told_in_all += 1
            self.evaluation = record if kind == "evaluation" else self.evaluation

    def _process(self, record: Record) -> ProcessState:
        key = (record["role"], record["rank"])
        if key not in self.processes:
            self.processes[key] = ProcessState(*key)
        return self.processes[key]

    def _note_life(self, record: Record) -> None:
        time_s, said = record["time_s"], record.get("life")
        life = said if isinstance(said, int) and 0 <= said < len(self.facts.lives) else self.facts.life_at(time_s)
        while len(self._last_seen_s) <= life:
            self._last_seen_s.append(0.0)
            self._forget_games()
            self.life_begins = True  # a resumed run goes on from its checkpoint's step
        lives = self.facts.lives[life : life + 2]
        if len(lives) == 2 and lives[0].ended_s == math.inf and time_s >= lives[1].started_s - CLOCKS_S:
            return  # it was killed, nobody noted when: perhaps the next life's, from a clock that is behind
        self._last_seen_s[life] = max(self._last_seen_s[life], time_s)

    def _forget_games(self, games_go_on: bool = False) -> None:
        """Those until now may have been played by parameters that are lost. Of games that go on, what was played before
        does not count when they end."""
        ended = self._ended_steps + sum(self._told_steps.values())
        self.life_scores, self._life_mean = Scores(self.facts.stop_games), None
        self._ended_steps = -max(0, self._steps - ended) if games_go_on else 0
        self._steps = 0
        self._told_steps.clear()

    def judge(self) -> None:
        """Renew `life_mean` and `best_mean`; to be called when the records of all processes until now are here."""
        self._life_mean = None
        if self._steps and self.life_scores.full and self._ended_steps >= MOSTLY_ENDED * self._steps:
            self._life_mean = mean = self.life_scores.mean or 0.0
            self.best_mean = mean if self.best_mean is None else max(self.best_mean, mean)

    # -- what it adds up to ----------------------------------------------------------------------------------------

    def of_roles(self, *roles: str, at_s: float | None = None) -> list[ProcessState]:
        """The processes of these roles, by rank; with `at_s` those that were heard of in the life at that time: a run
        may go on with fewer."""
        life = 0 if at_s is None else self.facts.life_at(at_s)
        since_s = self.facts.lives[life].started_s if life else -math.inf
        found = (p for p in self.processes.values() if p.role in roles and p.last_time_s >= since_s)
        return sorted(found, key=lambda p: (p.role, p.rank))

    def workers(self, at_s: float | None = None) -> list[ProcessState]:
        """Who plays and learns: workers, actors and learners."""
        return self.of_roles(*_TRAINERS, at_s=at_s)

    def total(self, name: str) -> float:
        """Sum of one count over the workers, since the run began."""
        return sum(process.totals.get(name, 0.0) for process in self.workers())

    def per_second(self, now_s: float, name: str) -> float:
        """Rate of one count over the last seconds: of the workers, or of server 0 for `commits`."""
        if name == "commits":
            servers = [p for p in self.processes.values() if p.totals.get("commits")]
            return max((p.recent.per_second(now_s, name) for p in servers), default=0.0)
        processes = self.processes.values() if name == "cpu_s" else self.workers()
        return sum(process.recent.per_second(now_s, name) for process in processes)

    @property
    def life_mean(self) -> float | None:
        """Mean of the newest life's last games when it was last judged; None where they are too few, or only its
        shortest."""
        return self._life_mean if len(self._last_seen_s) >= len(self.facts.lives) else None

    @property
    def cpu_hours(self) -> float:
        """Processor time of all processes that wrote a record, in hours."""
        return sum(process.totals.get("cpu_s", 0.0) for process in self.processes.values()) / 3600

    @property
    def data_points(self) -> float:
        """Agent steps that entered an update: the servers' count where there is one."""
        return self.data_points_committed or self.total("data_points")

    @property
    def frames(self) -> float:
        """Emulator frames stepped."""
        return self.total("frames")

    @property
    def trained_frames(self) -> float:
        """Emulator frames of the data points: what `total_frames` counts."""
        return self.data_points * self.frames / (self.total("agent_steps") or 1.0)

    def active_workers(self, now_s: float) -> int:
        """Live workers: as the newest server record says, else those heard of lately; of actors always these."""
        if actors := self.of_roles("actor"):
            return sum(not actor.is_silent(now_s, HEARD_OF_S) for actor in actors)
        told = [p for p in self.processes.values() if "active_workers" in p.latest]
        newest = max(told, key=lambda p: p.last_time_s, default=None)
        if newest is not None and not newest.is_silent(now_s, HEARD_OF_S):
            return int(newest.latest["active_workers"])
        return sum(not p.is_silent(now_s, HEARD_OF_S) for p in self.of_roles("worker"))

    def hours(self) -> tuple[float, float]:
        """(hours, core-hours held) over all lives of the run."""
        return self.facts.hours(self._last_seen_s)


def waited_for(summary: RunSummary) -> str:
    """Before the first update of a life, who has not said anything yet; "" once somebody trains."""
    if not summary.facts.lives or summary.facts.lives[-1].is_over:
        return ""
    life = summary.facts.lives[-1]
    here = {key: process for key, process in summary.processes.items() if process.last_time_s >= life.started_s}
    if any(process.stepped_s >= life.started_s for process in here.values()):
        return ""
    silent = [
        f"{role}-{rank}" for role, count in life.counts.items() for rank in range(count) if (role, rank) not in here
    ]
    if not silent:
        return "waiting for the first update"
    more = f" and {len(silent) - MOST_NAMED} more" if len(silent) > MOST_NAMED else ""
    return f"starting; nothing yet from {', '.join(silent[:MOST_NAMED])}{more}"


def event_line(record: Record) -> str:
    """An event record as one line for people."""
    return f"{record['role']}-{record['rank']}: {record.get('message') or record.get('event')}"


def section_shares(amounts: Mapping[str, float]) -> dict[str, float]:
    """Each section's part of the timed seconds ("section:NAME"); {} where nothing was timed."""
    spent = {name: amounts[f"section:{name}"] for name in SECTIONS if amounts.get(f"section:{name}")}
    return {name: seconds / sum(spent.values()) for name, seconds in spent.items()}


def dropped_share(counts: dict[str, float]) -> float | None:
    """Dropped gradients among all that were answered; None when none was."""
    dropped = counts.get("dropped", 0.0)
    answered = counts.get("accepted", 0.0) + dropped + counts.get("rejected", 0.0)
    return dropped / answered if answered else None
