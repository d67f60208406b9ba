"""A slow or broken tracker costs its own points only."""

import threading
from pathlib import Path

import pytest

from dba3c.errors import UserError
from dba3c.metrics import sinks
from dba3c.metrics.charts import Event, Point
from dba3c.metrics.sinks import BackgroundSink, TrackedRun
from dba3c.metrics.trackers import make_sinks

RUN = TrackedRun("run", "abc", {}, {}, (), Path("."))


class RecordingSink:
    """Keeps what it is given; raises on demand; may be held up."""

    name = "recording"

    def __init__(self, fails=(), open_fails=0):
        self.calls, self.closed = [], False
        self.fails, self.open_fails = set(fails), open_fails
        self.go_on, self.busy = threading.Event(), threading.Event()
        self.go_on.set()

    def open(self, run):
        if self.open_fails:
            self.open_fails -= 1
            raise ConnectionError("no such host\nwith a second line")

    def point(self, values, step, time_s):
        self.busy.set()
        assert self.go_on.wait(timeout=30)
        if step in self.fails:
            raise RuntimeError(f"step {step} refused")
        self.calls.append(step)

    def event(self, message, step, time_s):
        self.calls.append(message)

    def close(self):
        self.closed = True


def test_points_and_events_arrive_in_order_and_the_sink_is_closed():
    sink, warnings = RecordingSink(), []
    background = BackgroundSink(sink, RUN, warnings.append)
    background.give(Point({}, 1, 0.0))
    background.give(Event("hello", 1, 0.0))
    background.give(Point({}, 2, 0.0))
    background.close()
    assert sink.calls == [1, "hello", 2] and sink.closed and warnings == []


def test_a_slow_sink_drops_points_instead_of_holding_anyone_up(monkeypatch):
    monkeypatch.setattr(sinks, "QUEUE_LENGTH", 2)
    sink, warnings = RecordingSink(), []
    sink.go_on.clear()
    background = BackgroundSink(sink, RUN, warnings.append)
    background.give(Point({}, 0, 0.0))
    assert sink.busy.wait(timeout=30)
    for step in range(1, 10):
        background.give(Point({}, step, 0.0))
    assert background.dropped == 7
    sink.go_on.set()
    background.close()
    assert sink.calls == [0, 1, 2]
    assert warnings == ["recording missed 7 points or events: `dba3c export` gives it all"]


def test_a_sink_that_never_returns_is_left_behind_with_one_line():
    sink, warnings = RecordingSink(), []
    sink.go_on.clear()
    background = BackgroundSink(sink, RUN, warnings.append)
    background.give(Point({}, 0, 0.0))
    assert sink.busy.wait(timeout=30)
    for happened in (Point({}, 1, 0.0), Event("hello", 1, 0.0), Point({}, 2, 0.0)):
        background.give(happened)
    background.close(timeout_s=0.05)
    assert warnings == ["recording did not finish within 0 s; 2 points are left behind"]
    sink.go_on.set()


def test_a_password_in_a_trackers_address_is_not_told_with_its_failure(monkeypatch):
    def give(self, values, step, time_s):
        raise OSError("API request to https://me:s3cr@et@tracking.example/api failed: no route\nTraceback")

    warnings = []
    monkeypatch.setattr(RecordingSink, "point", give)
    background = BackgroundSink(RecordingSink(), RUN, warnings.append)
    background.give(Point({}, 0, 0.0))
    background.close()
    assert warnings[0].startswith("recording fails (API request to https://tracking.example/api failed: no route)")


def test_failures_are_warned_of_once_and_counted():
    sink, warnings = RecordingSink(fails={1, 2, 3}), []
    background = BackgroundSink(sink, RUN, warnings.append)
    for step in range(5):
        background.give(Point({}, step, 0.0))
    background.close()
    assert sink.calls == [0, 4] and background.failed == 3
    assert warnings[0] == "recording fails (step 1 refused); the run and its other trackers go on"
    assert len(warnings) == 2


def test_a_tracker_that_is_away_at_first_is_tried_again(monkeypatch):
    monkeypatch.setattr(sinks, "RETRY_OPEN_S", 0.0)
    sink, warnings = RecordingSink(open_fails=1), []
    background = BackgroundSink(sink, RUN, warnings.append)
    background.give(Point({}, 0, 0.0))
    background.give(Point({}, 1, 0.0))
    background.close()
    assert sink.calls == [1] and "(no such host)" in warnings[0]


def test_a_tracker_that_is_away_is_not_tried_at_every_point():
    sink = RecordingSink(open_fails=1000)
    background = BackgroundSink(sink, RUN, lambda message: None)
    for step in range(10):
        background.give(Point({}, step, 0.0))
    background.close()
    assert sink.open_fails == 999 and background.failed == 10 and not sink.closed


def test_an_unknown_tracker_is_refused_naming_the_known():
    with pytest.raises(UserError, match="no tracker is called 'tensorbord'; did you mean tensorboard"):
        make_sinks(["tensorbord"])


def test_a_client_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "neptune", None)
    (sink,) = make_sinks(["neptune"])
    with pytest.raises(UserError, match=r"pip install 'dba3c\[neptune\]'"):
        sink.open(RUN)
