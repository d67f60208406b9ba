"""The monitor process: one for each run. It follows the metrics files, feeds trackers, stops the run.

Nothing here can slow training down: the run only ever appends to its own files. `export` gives a tracker a whole
run afterwards (`dba3c export RUN --to NAME`), through the same reader and sinks.
"""

import contextlib
import itertools
import queue
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dba3c.config import RunConfig
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.metrics.charts import ChartInterval, Point, points_of
from dba3c.metrics.facts import RunFacts, reached_line
from dba3c.metrics.reader import RunReader
from dba3c.metrics.sinks import CLOSE_TIMEOUT_S, BackgroundSink, Sink, TrackedRun, give
from dba3c.metrics.summary import RunSummary
from dba3c.metrics.trackers import make_sinks
from dba3c.metrics.writer import MetricsWriter
from dba3c.roles import PER_START, RunProcess
from dba3c.runs.ending import RunEnd
from dba3c.runs.files import is_there, resolved
from dba3c.runs.folder import RunFolder
from param_servers.errors import first_line

POINTS_EVERY_S = 4.0
EXPORTED_EVERY_S = 10.0
ENDING_POLL_S = 1.0
"""Of a run that was asked to end: its launch waits for the monitor."""
_LEAST_CLOSE_S = 2.0  # for each sink, even when another has used the time up


class Monitor:
    """Follows one run; `look` is one turn of its loop.

    Args:
        run: the folder.
        sinks: trackers, not yet opened; each gets its own thread.
        limits: when to write stop.json, of the limits those that only the records show (`dba3c.runs.ending` has the
            others). Only games that ended in this life of the run count: one that is resumed was asked to go on.
        warn: takes one line about what does not work.
        on_stop: takes the reason when a limit ends the run.
        again: another monitor was here before in this life of the run; what it has drawn is not drawn again.

    Attributes:
        stop_reason: why a limit ended the run, None when it did not.
    """

    def __init__(
        self,
        run: RunFolder,
        sinks: Sequence[Sink] = (),
        limits: RunConfig | None = None,
        warn: Callable[[str], None] = warn_on_stderr,
        on_stop: Callable[[str], None] = lambda reason: None,
        again: bool = False,
    ) -> None:
        self.run = run
        facts = RunFacts.of(run)
        if limits is not None:
            facts = replace(facts, stop_games=limits.stop_games)
        life_s = facts.lives[-1].started_s if facts.lives else 0.0
        self._since_s = time.time() if again else life_s  # what is older was drawn by an earlier life
        tracked = TrackedRun.of(run)
        tracked = replace(tracked, resumed=tracked.resumed or again)  # something was drawn before
        self._sinks = [BackgroundSink(sink, tracked, warn) for sink in sinks]
        self.summary = RunSummary(facts)
        self.stop_reason: str | None = None
        self._reader = RunReader(run, warn)
        self._interval = ChartInterval(self.summary)
        self._limits = limits or RunConfig()
        self._next_point_s = 0.0
        self._warn = warn
        self._on_stop = on_stop
        self._news_s = time.monotonic()
        self._stop_failed = False
        if again or len(facts.lives) > 1:  # what is there already is taken in, without being drawn again
            self._take_in(judges=True)
            self._interval.take(self.summary.newest_s)

    def follow(self, told_to_end: queue.SimpleQueue[None] | None = None, poll_s: float = 1.0) -> None:
        """Look and wait until the run is over (`RunEnd`), or something is put into `told_to_end`; then a last look.

        Raises:
            RunBroken: the folder cannot be read any more.
        """
        run_end, told, told_to_end = RunEnd(self.run, look_s=0.0), False, told_to_end or queue.SimpleQueue()
        while True:
            # asked before the look: what was written until then is read
            over = told or run_end.nothing_more_comes(silent_s=time.monotonic() - self._news_s)
            self.look(time.time())
            if over:
                break
            with contextlib.suppress(queue.Empty):
                told_to_end.get(timeout=poll_s if run_end.reason is None else min(poll_s, ENDING_POLL_S))
                told = True
        self.close()

    def look(self, now_s: float) -> None:
        """Reads what is new; draws a point when one is due; stops the run when a limit is reached."""
        self._take_in()
        self.summary.judge()
        if time.monotonic() >= self._next_point_s:
            self._draw(now_s)
        if self.stop_reason is None and (reason := self._limit_reached()) is not None:
            self._stop(reason)

    def _limit_reached(self) -> str | None:
        limits, mean, used_hours = self._limits, self.summary.life_mean, self.summary.cpu_hours
        if limits.stop_score is not None and mean is not None and mean >= limits.stop_score:
            return reached_line(mean, limits.stop_games, limits.stop_score)
        if limits.max_core_hours is not None and used_hours >= limits.max_core_hours:
            return f"{used_hours:.2f} core-hours were used, {limits.max_core_hours:g} were allowed"
        return None

    def close(self) -> None:
        """The last point, then the trackers' farewell; what one did not get is warned of."""
        self._take_in()
        self._draw(self.summary.newest_s)
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        for sink in self._sinks:
            sink.close(max(_LEAST_CLOSE_S, deadline_s - time.monotonic()))

    def _draw(self, now_s: float) -> None:
        """Gives the trackers one point, from all that came in since the last one."""
        if self.summary.life_begins and len(self.summary.facts.lives) > 1:
            return  # trackers go on from the first point's step: it must not be one that was lost with the earlier life
        self._next_point_s = time.monotonic() + POINTS_EVERY_S  # at this pace whatever the clock is set to
        point = self._interval.take(now_s)
        if self.summary.newest_s < self._since_s or not point:
            return
        for sink in self._sinks:
            sink.give(Point(point, self.summary.step, now_s))

    def _take_in(self, judges: bool = False) -> None:
        """What is new. `judges`: after each step, so that of a long past the best mean is known, not the last alone."""
        for record in self._reader.poll():
            self._news_s = time.monotonic()
            happened = self._interval.add(record)
            if judges and record["kind"] == "step":
                self.summary.judge()
            if happened is not None and happened.time_s >= self._since_s:
                for sink in self._sinks:  # events and evaluations go to the trackers one by one
                    sink.give(happened)

    def _stop(self, reason: str) -> None:
        try:
            asked = self.run.request_stop(reason, finished=True)
        except UserError as error:  # a full disk: looked at again in the next turn
            if not self._stop_failed:
                self._stop_failed = True
                self._warn(str(error))
            return
        self.stop_reason = reason
        if asked:
            self._on_stop(reason)


def monitor(process: RunProcess) -> str:
    """The role's whole life: feeds the trackers and applies the limits until the run is over; why it ended.

    Ctrl-C reaches every process of a terminal: it is the launch's to handle, the monitor stays to the end. SIGTERM
    means that the run is over: one last look, then it ends. What does not work is said on stderr and in the monitor's
    own metrics file, where every view of the run finds it.
    """
    told_to_end: queue.SimpleQueue[None] = queue.SimpleQueue()  # an Event must not be set where a signal is handled
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.put(None))

    limits, metrics = process.config.run, MetricsWriter.of(process, "monitor")

    def warn(message: str) -> None:
        warn_on_stderr(message)
        metrics.record_event("warning", message)

    try:
        followed = Monitor(
            process.folder,
            make_sinks(limits.track),
            limits,
            warn=warn,
            on_stop=lambda reason: metrics.record_event("stopping", reason),
            again=process.incarnation % PER_START > 0,
        )
        # a look opens the files of all lanes, which write once in a window each
        followed.follow(told_to_end, poll_s=max(1.0, process.config.record_window_s / 4))
        return followed.stop_reason or "the run has ended"
    finally:
        metrics.close()


def export(
    path: str | Path,
    to: str,
    into: str | Path | None = None,
    warn: Callable[[str], None] = warn_on_stderr,
) -> int:
    """Gives the whole run to one tracker and returns the number of points.

    Args:
        to: a tracker's name, as in --track.
        into: where a tracker that writes files puts them; RUN/exports by default. Nothing else of the run changes.
        warn: is told which files had lines that are not records: nothing is skipped silently here.

    Raises:
        UserError: no run, no records, or some that cannot be read; no such tracker, the tracker failed, INTO cannot be
            written, or an earlier export is there, whose points would stand there twice.
    """
    run = RunFolder.open(path)
    run.refuse_committed()
    (sink,) = make_sinks([to])
    folder = resolved(into) if into is not None else run.path / "exports"
    if folder == run.path:
        raise UserError(f"{folder} is where the run's own trackers write: choose another folder (--into)")
    places = (folder / to, folder / f"{to}.db", folder / f".{to}")
    for earlier in places:
        if is_there(earlier):
            raise UserError(f"{earlier} holds an earlier export: remove it, or choose another folder (--into)")
    tracked, points = TrackedRun.of(run), 0
    everything = points_of(run, EXPORTED_EVERY_S, warn=warn)
    first = next(everything, None)
    if first is None:  # known before the tracker leaves files, which would count as an earlier export
        raise UserError(f"{run.path} has no records to export")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        # Neither the live run's identity nor an earlier export's: points would stand there twice.
        identity = f"{tracked.identity}-export-{int(time.time())}"
        sink.open(replace(tracked, identity=identity, folder=folder, resumed=False, exported=True))
        for happened in itertools.chain([first], everything):
            give(sink, happened, run.path)
            points += isinstance(happened, Point) and not happened.of_evaluation
        sink.close()
    except BaseException as error:  # a foreign client raises anything
        with contextlib.suppress(Exception):  # a thread of its own may still write
            sink.close()
        for place in places:  # half an export, which the next one would take for an earlier one
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        raise UserError(f"{to} failed after {points} points: {first_line(error)}") from error
    return points
