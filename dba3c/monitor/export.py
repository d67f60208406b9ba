"""`dba3c export RUN --to NAME`: replays a run's records into a tracker, through the reader and sinks of a live run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dba3c.errors import UserError
from dba3c.monitor.charts import ChartInterval, evaluation_point
from dba3c.monitor.reader import Record, RunReader
from dba3c.monitor.run_facts import RunFacts
from dba3c.monitor.sinks import Sink, TrackedRun, make_sinks
from dba3c.monitor.summary import RunSummary, event_line
from dba3c.run_folder import RunFolder


def export(path: str | Path, to: str, into: str | Path | None = None, points_every_s: float = 10.0) -> int:
    """Gives the whole run to one tracker and returns the number of points.

    Args:
        to: a tracker's name, as in --track.
        into: where a tracker that writes files puts them; RUN/exports by default. Nothing else of the run changes.
        points_every_s: seconds of the run between two points.

    Raises:
        UserError: no run, no records, no such tracker, or the tracker failed (nothing is skipped silently here).
    """
    run = RunFolder.open(path)
    (sink,) = make_sinks([to])
    folder = Path(into).expanduser().resolve() if into is not None else run.path / "exports"
    folder.mkdir(parents=True, exist_ok=True)
    tracked = TrackedRun.of(run)
    replay = _Replay(run, sink, points_every_s)
    try:
        # Not the live run's identity: its points would stand there twice.
        sink.open(replace(tracked, identity=f"{tracked.identity}-export", folder=folder, resumed=False))
        replay.run()
        sink.close()
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise UserError(f"{to} failed after {replay.points} points: {reason}") from error
    if not replay.points:
        raise UserError(f"{run.path} has no records to export")
    return replay.points


class _Replay:
    """Walks through a run's records in the order of time and draws a point at each end of an interval."""

    def __init__(self, run: RunFolder, sink: Sink, points_every_s: float) -> None:
        self.points = 0
        self._reader = RunReader(run)
        self._sink = sink
        self._every_s = points_every_s
        self._summary = RunSummary(RunFacts.of(run))
        self._interval = ChartInterval(self._summary)
        self._next_s: float | None = None

    def run(self) -> None:
        for record in self._reader.poll():
            self._draw_before(record["time_s"])
            self._summary.add(record)
            self._interval.add(record)
            self._pass_on(record)
        if self._next_s is not None:
            self._draw(self._summary.newest_s)

    def _draw_before(self, time_s: float) -> None:
        if self._next_s is not None and time_s >= self._next_s:
            self._draw(self._next_s)
        if self._next_s is None or time_s >= self._next_s:
            self._next_s = time_s + self._every_s  # a gap between two lives gets no points

    def _draw(self, now_s: float) -> None:
        self._sink.point(self._interval.take(now_s), self._summary.step, now_s)
        self.points += 1

    def _pass_on(self, record: Record) -> None:
        if record["kind"] == "event":
            self._sink.event(event_line(record), record["step"], record["time_s"])
        elif record["kind"] == "evaluation":
            step, point = evaluation_point(record)
            self._sink.point(point, step, record["time_s"])
