"""A run's records as the points and events that a tracker would have been given, in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dba3c.errors import warn_on_stderr
from dba3c.metrics.charts import ChartInterval, evaluation_point
from dba3c.metrics.reader import whole_run
from dba3c.metrics.run_facts import RunFacts
from dba3c.metrics.summary import RunSummary, event_line
from dba3c.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Point:
    """Values of charts at a committed step and a unix time. `of_evaluation`: one evaluated checkpoint, not the run."""

    values: dict[str, float]
    step: int
    time_s: float
    of_evaluation: bool = False


@dataclass(frozen=True)
class Event:
    """One line for people."""

    message: str
    step: int
    time_s: float


def replay(
    run: RunFolder, every_s: float, per_worker: bool = True, warn: Callable[[str], None] = warn_on_stderr
) -> Iterator[Point | Event]:
    """Points every `every_s` seconds of the run (none in the gap between two lives), and one at its end.

    `warn` is then told what could not be read, a line for each file.
    Raises UserError when config.json or meta.json is broken. Memory does not grow with the run.
    """
    summary = RunSummary(RunFacts.of(run))
    interval = ChartInterval(summary)
    next_s: float | None = None
    for record in whole_run(run, warn):
        if next_s is not None and record["time_s"] >= next_s:
            yield Point(interval.take(next_s, per_worker), summary.step, next_s)
            next_s = None
        next_s = record["time_s"] + every_s if next_s is None else next_s
        summary.add(record)
        interval.add(record)
        if record["kind"] == "event":
            yield Event(event_line(record), record["step"], record["time_s"])
        elif record["kind"] == "evaluation":
            step, values = evaluation_point(record)
            yield Point(values, step, record["time_s"], of_evaluation=True)
    if next_s is not None:
        yield Point(interval.take(summary.newest_s, per_worker), summary.step, summary.newest_s)
