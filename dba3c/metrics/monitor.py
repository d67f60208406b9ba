"""The monitor process: one for each run. It follows the metrics files, feeds trackers and terminal, stops the run.

Nothing here can slow training down: the run only ever appends to its own files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics.charts import ChartInterval, evaluation_point
from dba3c.metrics.reader import Record, RunReader
from dba3c.metrics.run_facts import RunFacts
from dba3c.metrics.sinks import Sink, TrackedRun, make_sinks
from dba3c.metrics.sinks.background import CLOSE_TIMEOUT_S, BackgroundSink
from dba3c.metrics.stop_rule import StopRule, StopWatch
from dba3c.metrics.summary import RunSummary, event_line
from dba3c.metrics.views import NoView, View
from dba3c.runs.ending import RunEnd
from dba3c.runs.run_folder import RunFolder

_LEAST_CLOSE_S = 2.0  # for each sink, even when another has used the time up


@dataclass(frozen=True)
class MonitorReport:
    """What a monitor saw until it ended."""

    records: int
    points: int
    stop_reason: str | None
    sinks_complete: bool


class Monitor:
    """Follows one run; `look` is one turn of its loop.

    Args:
        run: the folder.
        sinks: trackers, not yet opened; each gets its own thread.
        rule: when to write stop.json.
        view: terminal output.
        points_every_s: seconds between two points of a chart.
        warn: takes one line about what does not work.
        on_stop: takes the reason when the rule ends the run.
        again: another monitor was here before in this life of the run; what it has drawn is not drawn again.
    """

    def __init__(
        self,
        run: RunFolder,
        sinks: Sequence[Sink] = (),
        rule: StopRule | None = None,
        view: View | None = None,
        points_every_s: float = 5.0,
        warn: Callable[[str], None] = warn_on_stderr,
        on_stop: Callable[[str], None] = lambda reason: None,
        again: bool = False,
    ) -> None:
        self.run = run
        facts = RunFacts.of(run)
        life_s = facts.lives[-1].started_s if facts.lives else 0.0
        self.since_s = time.time() if again else life_s  # what is older was drawn by an earlier life
        tracked = TrackedRun.of(run)
        self._sinks = [BackgroundSink(sink, tracked, warn) for sink in sinks]
        self.summary = RunSummary(facts)
        self.stop_reason: str | None = None
        self.points = 0
        self.records = 0
        self._reader = RunReader(run)
        self._interval = ChartInterval(self.summary)
        self._watch = StopWatch(rule or StopRule(), life_s)
        self._view = view or NoView()
        self._points_every_s = points_every_s
        self._next_point_s = 0.0
        self._warn = warn
        self._on_stop = on_stop
        self._news_s = time.monotonic()
        self._warned: set[str] = set()
        if again or len(facts.lives) > 1:  # what is there already is taken in, without being drawn again
            self._take_in()
            self._interval.take(self.summary.newest_s)

    def silent_s(self) -> float:
        """Seconds since the last new record."""
        return time.monotonic() - self._news_s

    def look(self, now_s: float) -> None:
        """Reads what is new; draws a point when one is due; stops the run when its rule says so."""
        self._take_in()
        if now_s >= self._next_point_s:
            self.draw(now_s)
        reason = self._watch.reason(self.summary) if self.stop_reason is None else None
        if reason is not None:
            self.stop_reason = reason
            self._attempt_stop(reason)
        self._view.show(self.summary, now_s)

    def draw(self, now_s: float) -> None:
        """Gives the trackers one point, from all that came in since the last one."""
        self._next_point_s = now_s + self._points_every_s
        point = self._interval.take(now_s)
        if self.summary.newest_s < self.since_s or not point:
            return
        self.points += 1
        for sink in self._sinks:
            sink.point(point, self.summary.step, now_s)

    def close(self) -> bool:
        """The last point, then the trackers' farewell; True when they got everything."""
        self._take_in()
        now_s = self.summary.newest_s
        self.draw(now_s)
        self._view.show(self.summary, now_s)
        self._view.close(self.summary)
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        complete = [sink.close(max(_LEAST_CLOSE_S, deadline_s - time.monotonic())) for sink in self._sinks]
        return all(complete)

    def _take_in(self) -> None:
        for record in self._reader.poll():
            self.records += 1
            self._news_s = time.monotonic()
            self.summary.add(record)
            self._interval.add(record)
            self._watch.add(record)
            if record["time_s"] >= self.since_s:
                self._pass_on(record)
        self._complain_about_files()

    def _pass_on(self, record: Record) -> None:
        """Events and evaluations go to the trackers one by one."""
        if record["kind"] == "event":
            for sink in self._sinks:
                sink.event(event_line(record), record["step"], record["time_s"])
        elif record["kind"] == "evaluation":
            step, point = evaluation_point(record)
            for sink in self._sinks:
                sink.point(point, step, record["time_s"])

    def _attempt_stop(self, reason: str) -> None:
        try:
            if self.run.request_stop(reason, finished=True):
                self._on_stop(reason)
        except UserError as error:  # a full disk: looked at again in the next turn
            self.stop_reason = None
            self._warn_once("stop", str(error))

    def _complain_about_files(self) -> None:
        for about, complaint in self._reader.complaints().items():
            self._warn_once(about, complaint)

    def _warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._warn(message)


def run_monitor(
    folder: RunFolder,
    sinks: Sequence[str] = ("tensorboard",),
    stop_rule: StopRule | None = None,
    until_finished: Callable[[], bool] = lambda: False,
    view: View | None = None,
    poll_s: float = 1.0,
    points_every_s: float = 5.0,
    warn: Callable[[str], None] = warn_on_stderr,
    on_stop: Callable[[str], None] = lambda reason: None,
    again: bool = False,
) -> MonitorReport:
    """The monitor's whole life: look, wait, until the run is over; then a last look.

    Args:
        sinks: trackers by name, as in --track.
        until_finished: ends the monitor earlier than the end of the run, which it sees by itself (`RunEnd`).
        again: see `Monitor`.

    Raises:
        RunBroken: the folder cannot be read any more.
    """
    monitor = Monitor(folder, make_sinks(sinks), stop_rule, view, points_every_s, warn, on_stop, again)
    run_end, over = RunEnd(folder, look_s=0.0), False
    while not over:
        # asked before the look: what was written until then is read
        over = until_finished() or run_end.nothing_more_comes(monitor.silent_s())
        monitor.look(time.time())
        if not over:
            time.sleep(poll_s)
    complete = monitor.close()
    return MonitorReport(monitor.records, monitor.points, monitor.stop_reason, complete)
