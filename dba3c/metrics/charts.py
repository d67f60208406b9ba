"""Points for trackers and plots: what happened since the last point, reduced as `dba3c.metrics.registry` says."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dba3c.errors import warn_on_stderr
from dba3c.metrics import registry as metric_registry
from dba3c.metrics.facts import RunFacts
from dba3c.metrics.reader import Record, whole_run
from dba3c.metrics.registry import Reduced, over_processes
from dba3c.metrics.summary import ProcessState, RunSummary, dropped_share, event_line, section_shares
from dba3c.runs.folder import RunFolder

_DRAWN = {
    (kind, metric.name): metric
    for kind in ("step", "server", "episode")
    for metric in metric_registry.of_kind(kind).values()
    if metric.chart
}


@dataclass(frozen=True)
class Point:
    """Values of charts at a committed step and a unix time. `of_evaluation`: one evaluated checkpoint, not the run."""

    values: dict[str, float]
    step: int
    time_s: float
    of_evaluation: bool = False


@dataclass(frozen=True)
class Event:
    """One line for people. `film`: the file of a game that was filmed, in the run's folder."""

    message: str
    step: int
    time_s: float
    film: str = ""


class ChartInterval:
    """Collects the records between two points. `take` gives the point: chart name to value."""

    def __init__(self, summary: RunSummary) -> None:
        self.summary = summary
        self._clear()

    def _clear(self) -> None:
        self._values: dict[str, dict[tuple[str, int], Reduced]] = {}  # chart -> process -> its values
        self._scores: list[float] = []

    def add(self, record: Record) -> Point | Event | None:
        """Gives one record to the summary, too. Events and evaluations are not collected but come back at once."""
        self.summary.add(record)
        for name, value in record.items():
            metric = _DRAWN.get((record["kind"], name))
            of_all = record.get("count", 1) - (record.get("not_finite") or {}).get(name, 0)
            weight = (record.get("given") or {}).get(name, of_all)
            if metric is not None and isinstance(value, (int, float)) and weight > 0:
                of_processes = self._values.setdefault(metric.chart, {})
                process = (record["role"], record["rank"])
                of_processes.setdefault(process, Reduced(metric.reduction)).add(float(value), weight)
        if record["kind"] == "episode" and record.get("score") is not None:
            self._scores.append(record["score"])
        if record["kind"] == "event":
            step = record["step"] or self.summary.step  # who takes no part in steps knows none
            return Event(event_line(record), step, record["time_s"], str(record.get("film") or ""))
        return _evaluation_point(record) if record["kind"] == "evaluation" else None

    def take(self, now_s: float, per_worker: bool = True) -> dict[str, float]:
        """The point at `now_s`; what nobody recorded since the last one is left out."""
        self.summary.judge()
        point: dict[str, float | None] = {
            chart: over_processes(list(of_processes.values())) for chart, of_processes in self._values.items()
        }
        point |= _whole_run(self.summary, now_s) | _sections(self.summary, now_s)
        if self._scores:
            point["score/online"] = sum(self._scores) / len(self._scores)
        if per_worker:
            for process in self.summary.workers(self.summary.newest_s):
                point.update(_worker(process, now_s))
        self._clear()
        return {chart: value for chart, value in point.items() if value is not None}


def points_of(
    run: RunFolder, every_s: float, per_worker: bool = True, warn: Callable[[str], None] = warn_on_stderr
) -> Iterator[Point | Event]:
    """What a tracker would have been given of a run, in the order of time.

    Points every `every_s` seconds of the run (none in the gap between two lives), and one at its end. `warn` is then
    told which files had lines that are not records, a line for each. Memory does not grow with the run.

    Raises UserError when config.json or meta.json is broken, or a file cannot be read.
    """
    summary = RunSummary(RunFacts.of(run))
    interval = ChartInterval(summary)
    next_s: float | None = None
    for record in whole_run(run, warn):
        if next_s is not None and record["time_s"] >= next_s:
            yield Point(interval.take(next_s, per_worker), summary.step, next_s)
            next_s = None
        next_s = record["time_s"] + every_s if next_s is None else next_s
        happened = interval.add(record)
        if record["kind"] == "step":
            summary.judge()  # as often as the run's stop rule, which may see its goal between two points
        if happened is not None:
            yield happened
    if next_s is not None:
        yield Point(interval.take(summary.newest_s, per_worker), summary.step, summary.newest_s)


def _evaluation_point(record: Record) -> Point:
    """At the step of its checkpoint."""
    drawn = metric_registry.of_kind("evaluation").values()
    values = {m.chart: record[m.name] for m in drawn if m.chart and isinstance(record.get(m.name), (int, float))}
    return Point(values, int(record.get("checkpoint_step") or record["step"]), record["time_s"], of_evaluation=True)


def _whole_run(summary: RunSummary, now_s: float) -> dict[str, float | None]:
    scores, (hours, core_hours_held) = summary.scores, summary.hours()
    return {
        "score/mean": scores.mean,
        "score/max": scores.max,
        "score/best": scores.best,
        "score/best_mean": summary.best_mean,
        "progress/games": scores.count,
        "progress/frames": summary.frames,
        "progress/data_points": summary.data_points,
        "progress/hours": hours,
        "progress/core_hours_held": core_hours_held,
        "progress/cpu_hours": summary.cpu_hours,
        "speed/data_points_per_s": summary.per_second(now_s, "data_points"),
        "speed/frames_per_s": summary.per_second(now_s, "frames"),
        "speed/steps_per_s": summary.per_second(now_s, "commits"),
        "speed/cpu_cores": summary.per_second(now_s, "cpu_s"),
        "cluster/active_workers": summary.active_workers(now_s),
        "cluster/dropped_share": dropped_share(_recent(summary.workers(), now_s)),
        "cluster/dropped": summary.total("dropped"),
        "cluster/rejected": summary.total("rejected"),
    }


def _sections(summary: RunSummary, now_s: float) -> dict[str, float | None]:
    point: dict[str, float | None] = {}
    for group, processes in (("worker", summary.workers()), ("server", summary.of_roles("server"))):
        spent = section_shares(_recent(processes, now_s))
        point.update({f"sections/{group}_{name}": share for name, share in spent.items()})
    return point


def _worker(process: ProcessState, now_s: float) -> dict[str, float | None]:
    values = {
        "score": process.scores.mean,
        "frames_per_s": process.recent.per_second(now_s, "frames"),
        "dropped_share": process.dropped_share(now_s),
        "loss_total": process.latest.get("loss_total"),
        "waiting_share": process.section_shares(now_s).get("waiting"),
    }
    return {f"{process.name}/{name}": values[name] for name in metric_registry.PER_WORKER_CHARTS}


def _recent(processes: list[ProcessState], now_s: float) -> dict[str, float]:
    """The processes' recent sums, added up by name."""
    added: dict[str, float] = {}
    for process in processes:
        for name, amount in process.recent.sums(now_s).items():
            added[name] = added.get(name, 0.0) + amount
    return added
