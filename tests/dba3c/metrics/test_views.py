"""What a person sees of a run."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from dba3c.metrics import views
from dba3c.metrics.charts import ChartInterval
from dba3c.metrics.facts import Life, RunFacts
from dba3c.metrics.registry import SECTIONS
from dba3c.metrics.summary import RunSummary
from dba3c.metrics.views import (
    NotebookView,
    PlainView,
    RichView,
    duration,
    evaluation_text,
    number,
    terminal_view,
)
from dba3c.metrics.watch import Watcher, watch
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from tests.dba3c.metrics.made_up_run import CONFIG, START_S, Clock


def rich_text(run, width=120, **how):
    out = io.StringIO()
    status = watch(run.path, RichView(Console(file=out, width=width, force_terminal=False)), **how)
    return status, out.getvalue()


def test_the_live_view_shows_score_speed_sections_and_dropped_gradients_by_worker(make_up_run):
    status, text = rich_text(make_up_run(seconds=30))
    assert status == "finished"
    for expected in (
        "17 of 300 (last 50 games, max 29)", "12,800", "environment 50%", "waiting 80%", "30 (10%)",
        "evaluation", "IQM 2.50 [1 to 4] of 10 full games", "checkpoint of step 300 written", "0:00:30",
    ):  # fmt: skip
        assert expected in text


def test_every_section_has_a_colour_and_is_in_the_legend_of_a_run_that_has_it(make_up_run):
    assert set(views._COLOURS) == set(SECTIONS)
    assert views._legend(SECTIONS).plain.replace("█", " ").split() == list(SECTIONS)
    _, text = rich_text(make_up_run(seconds=5))
    (legend,) = [line for line in text.splitlines() if line.startswith("█")]
    assert legend.replace("█", " ").split() == ["environment", "inference", "learning", "waiting", "aggregating"]


def test_in_80_columns_every_number_is_whole_and_there_is_no_bar(make_up_run):
    run = make_up_run(seconds=30)
    _, wide = rich_text(run)
    assert "█" * views._BAR_WIDTH in wide
    _, narrow = rich_text(run, width=80)
    lines = narrow.splitlines()
    (header,) = [number for number, line in enumerate(lines) if line.startswith("process")]
    table = [" ".join(line.split()) for line in lines[header : header + 5]]
    assert table[0] == "process frames/s cores score dropped a step's time"
    assert table[3] == "worker-1 6,400 1 14.5 30 (10%) environment 50%, inference 20%"
    assert "…" not in narrow and "█" not in narrow and max(map(len, lines)) <= 80


def test_a_long_name_and_a_long_silence_wrap_before_any_number_does():
    summary, out = RunSummary(RunFacts("run")), io.StringIO()
    step = {"kind": "step", "time_s": 60.0, "window_s": 60.0, "step": 1, "role": "worker", "rank": 0}
    counts = {"incarnation": 3, "accepted": 1234, "dropped": 1234, "frames": 60 * 1234567.0}
    summary.add({**step, **counts, "sections_s": {"environment": 5.0, "inference": 2.0}})
    for width, now_s in ((80, 60.0), (80, 99_999.0), (119, 99_999.0), (120, 99_999.0)):
        Console(file=out, width=width).print(views.render(summary, now_s, width))
    assert "…" not in out.getvalue() and out.getvalue().count("silent") == 3
    assert "1,234 (50%)" in out.getvalue() and "1,234,567" in out.getvalue()


def test_the_live_view_shows_a_run_of_central_inference(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        learner, actor = MetricsWriter(run, "learner", 0), MetricsWriter(run, "actor", 0)
        learner.record_step(1, {"accepted": 1, "data_points": 80}, {"serving": 0.6, "inference": 0.3, "learning": 0.1})
        actor.record_step(1, {"agent_steps": 80, "frames": 320}, {"environment": 0.9, "other": 0.1})
        learner.close()
        actor.close()
        run.end_life("finished", "done")
    _, text = rich_text(run)
    assert "serving 60%, inference 30%" in text and "environment 90%, other 10%" in text


def test_of_many_workers_those_that_drop_are_shown_first(make_up_run):
    _, text = rich_text(make_up_run(seconds=2, workers=40, servers=1))
    names = [line.split()[0] for line in text.splitlines() if line.startswith(("worker-", "server-"))]
    assert names[:3] == ["server-0", "worker-1", "worker-0"] and "21 more" in text


def test_a_silent_worker_is_named(make_up_run):
    run = make_up_run(seconds=30)
    writer = MetricsWriter(run, "worker", 9)
    writer.record_step(1, {"accepted": 1})
    writer.close()  # now, years after the others
    _, text = rich_text(run, width=140)
    assert text.count("silent for") == 4


def test_a_worker_that_writes_once_a_minute_is_not_called_silent_between_its_records():
    summary, out = RunSummary(RunFacts("run")), io.StringIO()
    summary.add({"kind": "step", "time_s": 60.0, "window_s": 60.0, "step": 1, "role": "worker", "rank": 0})
    Console(file=out, width=140).print(views.render(summary, 105.0, 140))
    assert "silent" not in out.getvalue()
    Console(file=out, width=140).print(views.render(summary, 300.0, 140))
    assert "silent for 240 s" in out.getvalue()


def test_plain_lines_tell_events_once_and_the_state_in_a_rhythm(make_up_run):
    out = io.StringIO()
    watch(make_up_run(seconds=30).path, PlainView(out=out))
    event, evaluation, state = out.getvalue().splitlines()
    assert evaluation.startswith("evaluation of step ")
    assert event == "worker-0: checkpoint of step 300 written"
    assert state == (
        "[0:00:30] step 300  frames 384,000  score 17 of 300 (last 50 games, max 29)  3,040 data points/s  "
        "12,800 frames/s  workers 2  dropped 5.0%  cores 4 of 2  core-hours 0.0333"  # of 4 processes on 2 cores
    )


def test_a_stop_score_is_shown_as_exactly_as_the_score_beside_it(make_up_run):
    out, config = io.StringIO(), {**CONFIG, "run": {"stop_score": 0.95, "stop_games": 50}}
    watch(make_up_run(seconds=5, config=config).path, PlainView(out=out))
    assert " of 0.95 (last " in out.getvalue()


def test_before_the_first_update_it_is_said_who_is_waited_for(tmp_path):
    out, topology = io.StringIO(), {"servers": 1, "workers": 9, "monitors": 1, "coordinated": True}
    with RunFolder.create(tmp_path / "run", CONFIG, topology=topology) as run:
        for rank in range(2):
            MetricsWriter(run, "worker", rank).record_event("joined", "here")
        watcher = Watcher(run, PlainView(out=out))
        watcher.close()
        silent = "starting; nothing yet from server-0, worker-2, worker-3, worker-4, worker-5, worker-6 and 2 more"
        assert re.search(re.escape(silent) + r", \d+:\d\d:\d\d", out.getvalue().splitlines()[-1])
        for role, rank in [("server", 0), *(("worker", rank) for rank in range(2, 9))]:
            MetricsWriter(run, role, rank).record_event("joined", "here")
        watcher.close()
        assert out.getvalue().splitlines()[-1].partition(", ")[0].endswith("waiting for the first update")
        writer = MetricsWriter(run, "worker", 0)
        writer.record_step(1, {"accepted": 1})
        writer.close()
        watcher.close()
        assert "waiting" not in out.getvalue().splitlines()[-1]


def test_a_launch_that_died_before_its_first_record_is_not_said_to_wait_since_before_it(tmp_path):
    out = io.StringIO()
    with RunFolder.create(tmp_path / "run", CONFIG, topology={"servers": 1, "workers": 1}) as run:
        pass  # killed: no end is noted
    Watcher(run, PlainView(out=out)).close()
    assert out.getvalue().splitlines()[-1].endswith("starting; nothing yet from server-0, worker-0")


def test_an_event_that_comes_late_from_a_clock_that_is_behind_is_told_too():
    out, summary = io.StringIO(), RunSummary(RunFacts("run"))
    view = PlainView(out=out, since_s=START_S)
    for role, time_s in (("worker", START_S + 5), ("server", START_S + 3), ("server", START_S - 1)):
        event = {"kind": "event", "time_s": time_s, "step": 1, "role": role, "rank": 0, "event": "left"}
        summary.add(event)
        view.show(summary, START_S + 5)
        view.show(summary, START_S + 5)
    assert out.getvalue() == "worker-0: left\nserver-0: left\n"


def test_every_one_of_hundreds_of_events_between_two_looks_is_told():
    out, summary = io.StringIO(), RunSummary(RunFacts("run"))
    for rank in range(512):
        summary.add({"kind": "event", "time_s": 1.0, "step": 0, "role": "worker", "rank": rank, "event": "joined"})
    PlainView(out=out).show(summary, 1.0)
    assert out.getvalue().splitlines() == [f"worker-{rank}: joined" for rank in range(512)]


def test_an_evaluation_is_shown_as_exactly_as_the_stop_score_that_it_missed():
    assert evaluation_text({"mean": 0.86, "iqm": 0.88, "games": 1, "interval_95": [None, None]}) == (
        "mean 0.86, IQM 0.88 of 1 full games"
    )


def test_a_notebooks_bar_is_of_frames_trained_on_not_of_those_that_fill_a_replay(tmp_path):
    pytest.importorskip("IPython")
    config = {**CONFIG, "run": {"total_frames": 2000}}
    with RunFolder.create(tmp_path / "run", config) as run:
        summary, view = RunSummary(RunFacts.of(run)), NotebookView()
    shown = []
    view._below = SimpleNamespace(update=lambda html: shown.append(html.data))
    step = {"kind": "step", "role": "actor", "rank": 0, "step": 0, "agent_steps": 9000, "frames": 9000}
    summary.add({**step, "time_s": 1.0})
    view.show(summary, 1.0)
    summary.add({"kind": "server", "role": "learner", "rank": 0, "step": 1, "time_s": 2.0, "data_points_total": 500})
    view.show(summary, 2.0)
    assert ['value="0.000"' in shown[0], 'value="0.250"' in shown[1]] == [True, True]
    event = {"kind": "event", "role": "worker", "rank": 0, "step": 1, "time_s": 3.0, "message": "a <full> disk"}
    summary.add(event)
    summary.add({"kind": "evaluation", "role": "evaluator", "rank": 0, "step": 1, "time_s": 3.0, "mean": 2.0})
    view.show(summary, 3.0)
    assert "worker-0: a &lt;full&gt; disk" in shown[2] and "evaluation of step –: mean 2" in shown[2]


def test_a_runs_name_is_shown_as_it_is_whatever_is_in_its_brackets():
    out = io.StringIO()
    Console(file=out, width=140).print(views.render(RunSummary(RunFacts("run[best]")), 1.0, 140))
    assert "run[best]" in out.getvalue()


def test_lines_go_on_when_the_clock_is_set_back(monkeypatch):
    out, clock, summary = io.StringIO(), Clock(0.0), RunSummary(RunFacts("run"))
    monkeypatch.setattr(views, "time", clock)
    view = PlainView(every_s=10.0, out=out)
    for clock.now_s, now_s in ((0.0, START_S), (5.0, START_S + 5), (14.9, START_S - 3585), (15.0, START_S - 3585)):
        view.show(summary, now_s)
    assert out.getvalue() == 2 * "nothing recorded yet\n"


def test_the_last_line_is_not_said_twice(make_up_run, monkeypatch):
    out, clock = io.StringIO(), Clock()
    watcher = Watcher(make_up_run(seconds=30), PlainView(out=out))
    monkeypatch.setattr(views, "time", clock)
    for clock.now_s in (START_S + 30, START_S + 35):
        watcher.look(clock.now_s)
    said = out.getvalue()
    watcher.close()
    assert out.getvalue() == said and "step 300 " in said.splitlines()[-1]


def test_plain_lines_tell_each_evaluation_once(tmp_path):
    out = io.StringIO()
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        writer = MetricsWriter(run, "evaluator", 0)
        result = {"games": 50, "unfinished": 0, "mean": 12.5, "median": 12.0, "iqm": 12.25, "max": 20.0}
        writer.record_evaluation(2000, checkpoint_step=2000, interval_95=(11.0, 13.5), **result)
        watcher = Watcher(run, PlainView(out=out))
        watcher.look()
        watcher.close()
    line = "evaluation of step 2,000: mean 12.50, IQM 12.25 [11 to 13.50] of 50 full games"
    assert out.getvalue().splitlines().count(line) == 1


def test_evaluations_that_come_between_two_looks_are_all_told(tmp_path):
    out = io.StringIO()
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        writer, watcher = MetricsWriter(run, "evaluator", 0), Watcher(run, PlainView(out=out))
        for step in (100, 200, 300):
            writer.record_evaluation(step, checkpoint_step=step, interval_95=(1.0, 2.0), games=50, mean=1.5)
            if step != 100:
                watcher.look()
        watcher.close()
    told = [line.split(":")[0] for line in out.getvalue().splitlines() if line.startswith("evaluation")]
    assert told == ["evaluation of step 100", "evaluation of step 200", "evaluation of step 300"]


def test_after_a_resume_with_fewer_processes_those_of_the_earlier_life_are_not_shown():
    lives = (Life(0.0, 4.0, {"worker": 64}), Life(1000.0, 2.0, {"worker": 32}))
    interval, out = ChartInterval(RunSummary(RunFacts("run", lives=lives))), io.StringIO()
    step = {"kind": "step", "role": "worker", "window_s": 1.0, "frames": 4, "agent_steps": 4}
    for time_s, workers, staleness in ((10.0, 64, 7), (1010.0, 32, 1)):
        for rank in range(workers):
            interval.add({**step, "time_s": time_s, "step": 1, "rank": rank, "staleness_max": staleness})
        drawn = {name.split("/")[0] for name in interval.take(time_s) if name.startswith("worker-")}
        assert len(drawn) == workers
    Console(file=out, width=140).print(views.render(interval.summary, 1010.0, 140))
    assert "silent" not in out.getvalue() and "12 more" in out.getvalue()
    assert "staleness (max)   1" in out.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_no_terminal_or_cannot_be_drawn_on_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(terminal_view(io.StringIO()), PlainView)
    assert isinstance(terminal_view(Terminal()), RichView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(terminal_view(Terminal()), PlainView)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_errors_that_were_sent_to_a_file_are_not_drawn_on_the_terminal(monkeypatch, kind):
    screen, errors = Terminal(), kind()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", errors)
    view, summary = RichView(Console(file=screen, force_terminal=True)), RunSummary(RunFacts("run"))
    view.show(summary, 1.0)
    print("dba3c: warning: a full disk", file=sys.stderr)
    view.close(summary)
    assert ("a full disk" in errors.getvalue()) == (kind is io.StringIO)
    assert ("a full disk" in screen.getvalue()) == (kind is Terminal)
    assert (sys.stdout, sys.stderr) == (screen, errors)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (3.0, "3"), (3.14159, "3.1"), (1234567.8, "1,234,568"), (-21.0, "-21")]
)
def test_numbers_are_written_for_people(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("hours", "text"), [(0.0, "0"), (0.00123, "0.0012"), (0.0333333, "0.0333"), (0.1234, "0.12"), (12.0, "12.00")]
)
def test_core_hours_of_a_short_run_are_not_nothing(hours, text):
    assert views.core_hours(hours) == text


def test_hours_are_written_as_a_clock():
    assert duration(26.5 + 7 / 3600) == "26:30:07"
