"""What each process writes down: append-only JSON lines, summed over windows, safe against anything but a bug.

    writer = MetricsWriter(run, "worker", rank=3)
    sections = Sections()
    with sections("environment"):
        ...
    writer.record_step(step, {"accepted": 1, "loss_total": 0.3, ...}, sections.take())

Every process has a file of its own, so no line is ever torn by another writer. The names are those of
`dba3c.metrics.registry`; docs/metrics.md describes them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

from dba3c.errors import warn_on_stderr
from dba3c.metrics import registry as metric_registry
from dba3c.metrics.processor_time import ProcessorTime
from dba3c.metrics.registry import WEIGHTED, Reduced
from dba3c.roles import RunProcess
from dba3c.runs.folder import RunFolder
from param_servers.line_file import LineFile

if TYPE_CHECKING:  # who supervises writes records too, and needs no NumPy
    from dba3c.environments.protocol import Episode, Experience
    from param_servers.exchange import Receipt


class _Section:
    """Adds the time spent inside it to `total_s`."""

    __slots__ = ("_began_s", "taken_s", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0  # written by the thread that is timed alone
        self.taken_s = 0.0  # written by the one that takes alone
        self._began_s = 0.0

    def __enter__(self) -> None:
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.total_s += time.perf_counter() - self._began_s


class Sections:
    """Where the time of a step goes. Sections do not nest; each costs well under a microsecond of bookkeeping.

    One thread is timed; one, perhaps another, takes.
    """

    def __init__(self) -> None:
        self._sections: dict[str, _Section] = {}

    def __call__(self, name: str) -> _Section:
        section = self._sections.get(name)
        if section is None:
            section = self._sections[name] = _Section()
        return section

    def take(self) -> dict[str, float]:
        """Seconds by section since the last `take`."""
        taken = {}
        for name, section in list(self._sections.items()):
            total_s = section.total_s
            taken[name] = total_s - section.taken_s
            section.taken_s = total_s
        return taken


class MetricsWriter:
    """Writes one process's records. Thread-safe, and the disk never makes it raise: what it refuses is counted.

    Args:
        role, rank, incarnation: who writes; the file is metrics/ROLE-RANK.jsonl, whatever the incarnation.
        life: which of the run's; None: who reads takes it from the time, which a clock that is set back makes wrong.
        lane: which of a worker's processes; the others than the first write metrics/ROLE-RANK.LANE.jsonl.
        window_s: step and server records are reduced over windows of this length, and lines written together.
        warn: called with one line when something could not be written.
    """

    def __init__(
        self,
        run: RunFolder,
        role: str,
        rank: int,
        incarnation: int = 0,
        window_s: float = 1.0,
        warn: Callable[[str], None] = warn_on_stderr,
        lane: int = 0,
        life: int | None = None,
    ) -> None:
        self._run = run
        self._identity: dict[str, Any] = {"role": role, "rank": rank, "incarnation": incarnation}
        self._identity |= {} if life is None else {"life": life}
        self._window_s = window_s
        self._file = LineFile(run.metrics_file(role, rank, lane), warn)
        self._windows = {"step": Window("step"), "server": Window("server")}
        self._waiting: list[dict[str, Any]] = []
        self._step = 0
        self._opened_s = time.monotonic()
        self._recorded_s = dict.fromkeys(self._windows, self._opened_s)
        self._processor_time = ProcessorTime()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, process: RunProcess, role: str) -> MetricsWriter:
        """A process's own file; of a worker's lane or an actor, where they are many, with longer windows."""
        config = process.config
        window_s = config.record_window_s if role in ("worker", "actor") else config.run.metrics_window_s
        life = process.folder.life_number()
        return cls(process.folder, role, process.rank, process.incarnation, window_s, lane=process.lane, life=life)

    def record_step(
        self, step: int, values: Mapping[str, SupportsFloat], sections_s: Mapping[str, float] | None = None
    ) -> None:
        """What a process did since its last record: one gradient (accepted, dropped or rejected) of a worker or
        learner, or steps alone (an actor's, and those for which no gradient is answered).

        `step`: the newest committed step that it knows. Raises UserError: a metric that the registry does not have.
        """
        self._reduce("step", step, values, sections_s or {})

    def record_report(self, figures: Mapping[str, Any]) -> None:
        """An exchange's ``on_report``: what a server, or the rank that speaks where there is none, has counted.

        Args:
            figures: ``step``, the metrics of kind server that it knows (others are left out), ``sections_s``, and
                ``window_s``, the seconds that they were counted over; without it those since the last record.
        """
        known = metric_registry.of_kind("server")
        values = {name: value for name, value in figures.items() if name in known}
        self._reduce("server", figures["step"], values, figures.get("sections_s") or {}, figures.get("window_s"))

    def record_episode(self, step: int, episode: Episode) -> None:
        """One finished game."""
        told = {name: getattr(episode, name) for name in ("length_steps", "terminated", "truncated")}
        with self._lock:
            self._step = step  # it may be earlier than a waiting window's, which a roll-back has undone
            self._append("episode", step, {**finite_or_null({"score": episode.score}), **told})
            self._flush_when_due()

    def record_evaluation(self, step: int, interval_95: Sequence[float] | None, **numbers: float) -> None:
        """One checkpoint's full games; `interval_95`: the bootstrap interval (low, high) of the IQM."""
        with self._lock:
            interval: dict[str, Any] = {"interval_95": interval_95 or [None, None]}
            self._append("evaluation", step, {**finite_or_null(numbers), **interval, "cpu_s": self._spent_s()})
            self._flush()

    def record_event(self, event: str, message: str, step: int | None = None, film: str = "") -> None:
        """Something happened (joined, left, killed, shrunk, checkpoint, ...): `message` is one line for people.

        Args:
            film: the file, in the run's folder, of a game that was filmed.
        """
        if self._run.lock is not None:  # events are rare, and what ends a run is one: no need to wait for the next beat
            self._run.lock.look()
        with self._lock:
            self._step = self._step if step is None else step
            self._append(
                "event",
                self._step,
                {"event": event, "message": message, "cpu_s": self._spent_s()} | ({"film": film} if film else {}),
            )
            self._flush()

    def record_told(self, event: Mapping[str, Any]) -> None:
        """An exchange's ``on_event``: of what it tells the line for people."""
        self.record_event(event["event"], event["message"], event.get("step"))

    def flush(self) -> None:
        """Writes what is waiting, the unfinished windows too."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Writes what is waiting and closes the file; harmless when done twice."""
        with self._lock:
            self._flush()
            self._file.close()

    def _reduce(
        self,
        kind: str,
        step: int,
        values: Mapping[str, SupportsFloat],
        sections_s: Mapping[str, float],
        window_s: float | None = None,
    ) -> None:
        with self._lock:
            self._step = step
            self._windows[kind].add(values, sections_s, window_s)
            self._flush_when_due()

    def _flush_when_due(self) -> None:
        if time.monotonic() - self._opened_s >= self._window_s:
            self._flush()

    def _spent_s(self) -> float:
        """Processor seconds since a record last had them, so that all records together have all of them. A launcher's
        are not the run's: in Python it is in the caller's own process."""
        if self._identity["role"] == "launcher":
            return 0.0
        return round(self._processor_time.take(), 3)

    def _append(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        self._waiting.append({"kind": kind, "time_s": round(time.time(), 3), "step": step, **self._identity, **fields})

    def _flush(self) -> None:
        now_s = time.monotonic()
        for kind, window in self._windows.items():
            if window.count:
                # not since the last flush: an event's or a game's may have come just before the first value
                window_s = now_s - self._recorded_s[kind] if window.window_s is None else window.window_s
                spans = {"window_s": round(window_s, 3), "cpu_s": self._spent_s()}
                self._recorded_s[kind] = now_s
                self._append(kind, self._step, {**spans, **window.record()})
                window.clear()
        self._opened_s = now_s
        waiting, self._waiting = self._waiting, []
        if self._run.lock is None or self._run.lock.lost_to is None:  # else the file is the next launch's
            self._file.write(waiting)


class GradientRecorder:
    """Writes down what each gradient was: an accepted one is data, a dropped one only experience.

    Experience is what was stepped, whether a gradient of it is answered or not: `finish` writes down the last of it.

    Args:
        counts: whether its gradients are counted; those of a worker's other lanes are part of its first lane's.
    """

    def __init__(self, metrics: MetricsWriter, counts: bool = True) -> None:
        self.metrics = metrics
        self._counts = counts
        self._step = 0
        self._experience = {"agent_steps": 0, "frames": 0}
        self._episodes: list[Episode] = []

    def stepped(self, step: int, experience: Experience, episodes: list[Episode], failures: Sequence[str] = ()) -> None:
        """Environments were stepped with the parameters of ``step``; the next ``record`` writes it down."""
        self._step = step
        for name, count in experience._asdict().items():
            self._experience[name] += count
        self._episodes += episodes
        for failure in failures:
            self.metrics.record_event("environment_restarted", failure, step)

    def record(
        self, receipt: Receipt, pulled_step: int, data_points: int, numbers: dict[str, float], sections: Sections
    ) -> None:
        """One gradient of ``data_points`` on the parameters of ``pulled_step``, and the games that have ended since."""
        dropped = not receipt.accepted and receipt.reason == "stale"
        # an update does not count for its own gradient's delay: on time is 0
        delay = max(0, receipt.step - pulled_step - receipt.accepted)
        values: dict[str, float] = {
            **numbers,  # what is counted here is no loss's to say
            **self._take(receipt.step),
            "data_points": data_points if receipt.accepted else 0,
            **dict.fromkeys(("staleness_mean", "staleness_min", "staleness_max"), delay),
        }
        if self._counts:
            rejected = not receipt.accepted and not dropped
            values |= {"accepted": receipt.accepted, "dropped": dropped, "rejected": rejected}
        if receipt.norms is not None:
            values |= dict(zip(("gradient_norm", "gradient_norm_clipped"), receipt.norms, strict=True))
        self.metrics.record_step(receipt.step, values, sections.take())

    def finish(self) -> None:
        """No gradient will be answered any more. Games alone are no record of a gradient: loss and norm are weighted by
        their number."""
        taken = self._take(self._step)
        if taken["agent_steps"]:
            self.metrics.record_step(self._step, taken)

    def _take(self, step: int) -> dict[str, int]:
        """What was done since the last call, for the record of ``step``; its games are written down here."""
        taken, self._experience = self._experience, dict.fromkeys(self._experience, 0)
        episodes, self._episodes = self._episodes, []
        for episode in episodes:
            self.metrics.record_episode(step, episode)
        return taken


class Window:
    """Several steps' values made one record, each by its metric's reduction. Values that are not finite are counted."""

    def __init__(self, kind: metric_registry.Kind) -> None:
        self._kind = kind
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.window_s: float | None = None
        """Seconds that the values say they are of, None when they do not."""
        self._values: dict[str, Reduced] = {}
        self._not_finite: dict[str, int] = {}
        self._sections_s: dict[str, float] = {}

    def add(
        self, values: Mapping[str, SupportsFloat], sections_s: Mapping[str, float], window_s: float | None = None
    ) -> None:
        """Raises UserError when a name is unknown (nearest ones named)."""
        self.count += 1
        if window_s is not None:
            self.window_s = (self.window_s or 0.0) + window_s
        for name, given in values.items():
            metric, value = metric_registry.find(self._kind, name), float(given)
            if not math.isfinite(value):
                self._not_finite[name] = self._not_finite.get(name, 0) + 1
                continue
            if name not in self._values:
                self._values[name] = Reduced(metric.reduction)
            self._values[name].add(value)
        for name, seconds in sections_s.items():
            self._sections_s[name] = self._sections_s.get(name, 0.0) + seconds

    def record(self) -> dict[str, Any]:
        """{name: value, count, sections_s, not_finite, given}; a name that only had non-finite values is null."""
        record: dict[str, Any] = {"count": self.count}
        record |= {name: short(reduced.value) for name, reduced in self._values.items()}
        given = {name: int(reduced.weight) for name, reduced in self._values.items() if reduced.reduction in WEIGHTED}
        some = {name: n for name, n in given.items() if n + self._not_finite.get(name, 0) != self.count}
        if some:  # not in each step: what the mean weighs where it meets others
            record["given"] = some
        for name in self._not_finite:
            record.setdefault(name, None)
        if self._not_finite:
            record["not_finite"] = dict(self._not_finite)
        record["sections_s"] = {name: round(seconds, 6) for name, seconds in self._sections_s.items()}
        return record


def short(value: float) -> float | int:
    """Seven significant digits, which is all a float32 has; whole numbers exactly."""
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.7g}")


def finite_or_null(values: Mapping[str, float]) -> dict[str, Any]:
    """The values with null for those that JSON has no number for, and their count."""
    bad = {name: 1 for name, value in values.items() if not math.isfinite(value)}
    record: dict[str, Any] = {name: None if name in bad else short(float(value)) for name, value in values.items()}
    return {**record, "not_finite": bad} if bad else record
