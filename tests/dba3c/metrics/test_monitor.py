"""The monitor: trackers, the stop rule, and when it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dba3c.config import RunConfig, TrainConfig, replace_options
from dba3c.environments.protocol import Episode
from dba3c.metrics import monitor as monitor_module
from dba3c.metrics.monitor import Monitor
from dba3c.metrics.monitor import monitor as monitor_role
from dba3c.metrics.sinks import TrackedRun
from dba3c.metrics.writer import MetricsWriter
from dba3c.roles import PER_START, RunProcess
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import load_curve
from tests.dba3c.metrics.made_up_run import CONFIG, START_S, Clock, set_lives, step_values
from tests.dba3c.metrics.test_background_sink import RecordingSink
from tests.dba3c.metrics.test_tensorboard import scalars


def tracking(name):
    return TrainConfig(run=RunConfig(track=(name,)))


class PointSink(RecordingSink):
    def __init__(self):
        super().__init__()
        self.points, self.events = [], []

    def point(self, values, step, time_s):
        self.points.append((step, values))

    def event(self, message, step, time_s):
        self.events.append(message)


def no_warning(message):
    raise AssertionError(f"an unexpected warning: {message}")


def test_a_point_holds_every_chart_and_events_and_evaluations_come_through(make_up_run):
    run, sink = make_up_run(seconds=30), PointSink()
    monitor = Monitor(run, [sink], warn=no_warning)
    monitor.look(START_S + 30)
    monitor.close()
    (at, evaluated), (step, point), *_ = sink.points
    assert (at, evaluated["score/evaluation_iqm"]) == (250, 2.5)
    assert step == 300 and sink.events == ["worker-0: checkpoint of step 300 written"] and sink.closed
    assert point["score/mean"] == pytest.approx(sum([s for s in range(30) for _ in (0, 1)][-50:]) / 50)
    assert point["speed/progress_frames"] == 2 * 300 * 160 * 4 and point["cluster/dropped"] == 30
    assert point["speed/frames_per_s"] == pytest.approx(2 * 1600 * 4, rel=0.02)
    assert point["speed/sections_worker_environment"] == pytest.approx(0.5)
    assert point["speed/sections_server_waiting"] == pytest.approx(0.8)
    assert point["optimizer/gradient_delay_max"] == 1.0 and point["speed/progress_core_hours_held"] == pytest.approx(
        2 * 30 / 3600
    )


def test_a_folder_whose_name_is_no_text_has_an_identity_too(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    RunFolder.create(folder, TrainConfig().to_json()).release()
    assert TrackedRun.of(RunFolder.open(folder)).identity


def test_the_stop_score_writes_stop_json_once_with_its_reason(make_up_run):
    run, told = make_up_run(seconds=60, finished=False, score=lambda second: 100.0), []
    monitor = Monitor(run, limits=RunConfig(stop_score=100.0), warn=no_warning, on_stop=told.append)
    for now_s in (START_S + 60, START_S + 61):
        monitor.look(now_s)
    assert told == ["mean score 100 of the last 50 games reached 100"] == [run.stop_reason()]
    monitor.close()
    run.release()


def test_the_first_games_to_end_are_the_shortest_and_do_not_end_a_run(tmp_path):
    with RunFolder.create(tmp_path / "run", {"run": {"stop_games": 8}}) as run:
        monitor = Monitor(run, limits=RunConfig(stop_score=10.0, stop_games=8), warn=no_warning)
        writer = MetricsWriter(run, "worker", 0)
        writer.record_step(
            1, step_values(agent_steps=80 * 1700)
        )  # 80 environments begin; a tenth play short games well
        for _ in range(8):
            writer.record_episode(1, Episode(20.0, 1700, True, False))
        writer.flush()
        monitor.look(START_S)
        assert run.stop_reason() is None
        assert load_curve(run.path).reached(10.0) is None
        for _ in range(72):
            writer.record_episode(2, Episode(11.0, 3500, True, False))
        writer.record_step(2, step_values(agent_steps=72 * 1800))
        writer.flush()
        monitor.look(START_S)
        assert run.stop_reason() == "mean score 11 of the last 8 games reached 10"
        assert load_curve(run.path).reached(10.0) is not None
        monitor.close()
        writer.close()


def test_points_go_on_when_the_clock_is_set_back(make_up_run, monkeypatch):
    run, sink, clock = make_up_run(seconds=30), PointSink(), Clock(1000.0)
    monitor = Monitor(run, [sink], warn=no_warning)
    monkeypatch.setattr("dba3c.metrics.monitor.time", clock)
    for clock.now_s, now_s in ((1000.0, START_S + 30), (1003.9, START_S - 3566), (1004.0, START_S - 3566)):
        monitor.look(now_s)
    monitor.close()
    assert len([values for _, values in sink.points if "score/evaluation_iqm" not in values]) == 3  # the last: close


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (RunConfig(stop_score=100.1), None),
        (RunConfig(stop_score=50.0, stop_games=200), None),
        (RunConfig(max_core_hours=4 * 31 / 3600), None),  # two workers and two servers
        (RunConfig(max_core_hours=0.03), "0.03 core-hours were used, 0.03 were allowed"),
    ],
)
def test_each_limit_holds_exactly(make_up_run, limits, reason):
    run = make_up_run(seconds=30, score=lambda second: 100.0)
    monitor = Monitor(run, limits=limits, warn=no_warning)
    monitor.look(START_S + 30)
    assert monitor.stop_reason == reason == run.stop_reason()
    monitor.close()


def test_games_of_an_earlier_life_do_not_stop_a_resumed_run_nor_are_they_drawn_again(make_up_run):
    run, sink = make_up_run(seconds=60, score=lambda second: 100.0), PointSink()
    set_lives(run, (START_S, START_S + 60, 2), (START_S + 100, None, 2))
    monitor = Monitor(run, [sink], limits=RunConfig(stop_score=100.0), warn=no_warning)
    monitor.look(START_S + 101)
    monitor.close()
    assert run.stop_reason() is None and sink.points == [] and sink.events == []
    assert monitor.summary.scores.mean == 100.0


def test_a_resumed_life_draws_nothing_at_a_lost_step_before_its_first_own_step_is_there(make_up_run):
    run, sink = make_up_run(seconds=30), PointSink()
    set_lives(run, (START_S, START_S + 30, 2), (START_S + 100, None, 2))
    monitor = Monitor(run, [sink], warn=no_warning)
    writer = MetricsWriter(run, "worker", 0)
    writer.record_event("restored", "from the checkpoint of step 250", step=250)
    monitor.look(START_S + 101)
    writer.record_step(251, {"accepted": 1})
    writer.close()
    monitor.look(START_S + 102)
    monitor.close()
    assert {step for step, _ in sink.points} == {251}
    assert sink.events == ["worker-0: from the checkpoint of step 250"]


def test_what_a_resumed_life_has_written_before_its_monitor_came_does_not_break_it(make_up_run):
    run, sink = make_up_run(seconds=60, finished=False), PointSink()
    set_lives(run, (START_S, START_S + 20, 2), (START_S + 30, None, 2))
    monitor = Monitor(run, [sink], warn=no_warning)
    monitor.look(START_S + 61)
    monitor.close()
    assert sink.events == ["worker-0: checkpoint of step 600 written"]
    assert [step for step, values in sink.points if "score/evaluation_iqm" in values] == [550]
    run.release()


def test_a_monitor_that_was_started_again_draws_nothing_twice_and_still_stops_the_run_at_its_score(make_up_run):
    run, sink = make_up_run(seconds=60, finished=False, score=lambda second: 100.0), PointSink()
    monitor = Monitor(run, [sink], RunConfig(stop_score=100.0), warn=no_warning, again=True)
    monitor.look(START_S + 61)
    monitor.close()
    assert sink.points == [] and sink.events == []
    assert run.stop_reason() == "mean score 100 of the last 50 games reached 100"
    run.release()


def test_a_monitor_that_was_started_again_knows_the_best_mean_of_all_before_as_the_plots_do(make_up_run):
    run = make_up_run(seconds=60, finished=False, score=lambda second: 400.0 if second < 30 else 100.0)
    best = load_curve(run.path).recorded("score/best_mean")[-1]
    assert best == 400.0
    assert Monitor(run, warn=no_warning, again=True).summary.best_mean == best
    run.release()


def test_a_full_disk_delays_the_stop_and_does_not_end_the_monitor(make_up_run, monkeypatch):
    from dba3c.errors import UserError

    run, warnings = make_up_run(seconds=30, score=lambda second: 100.0), []
    monitor = Monitor(run, limits=RunConfig(stop_score=100.0, stop_games=10), warn=warnings.append)

    def full(reason, finished=False):
        raise UserError("cannot write stop.json: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(run, "request_stop", full)
        for now_s in (START_S + 30, START_S + 31):
            monitor.look(now_s)
    assert warnings == ["cannot write stop.json: No space left on device"] and run.stop_reason() is None
    monitor.look(START_S + 32)
    assert run.stop_reason() == "mean score 100 of the last 10 games reached 100"
    monitor.close()


def test_it_ends_with_its_run_and_reads_what_was_written_last(tmp_path):
    run = RunFolder.create(tmp_path / "run", CONFIG)
    writer = MetricsWriter(run, "worker", 0)
    monitor = Monitor(run)
    thread = threading.Thread(target=lambda: monitor.follow(poll_s=0.01))
    thread.start()
    writer.record_event("joined", "worker 0 joined")
    writer.record_step(5, {"accepted": 1})
    writer.close()
    run.end_life("finished", "done")
    thread.join(timeout=30)
    run.release()
    assert not thread.is_alive() and monitor.summary.step == 5


@pytest.mark.parametrize("poll_s", [0.01, 100.0])
def test_it_ends_when_the_run_was_asked_to_stop_and_is_silent_however_seldom_it_looked_before(tmp_path, poll_s):
    began_s = time.monotonic()
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        run.request_stop("enough")
        Monitor(run).follow(poll_s=poll_s)
    assert time.monotonic() - began_s < 60.0


def test_it_ends_when_its_launch_is_dead(tmp_path):
    create = f"RunFolder.create({str(tmp_path / 'run')!r}, {{}})"
    code = f"import os; from dba3c.runs.folder import RunFolder; {create}; os._exit(9)"
    subprocess.run([sys.executable, "-c", code], timeout=60)
    Monitor(RunFolder.open(tmp_path / "run")).follow(poll_s=0.01)


def test_the_process_ends_on_sigterm_with_its_trackers_complete_and_ignores_ctrl_c(tmp_path):
    with RunFolder.create(tmp_path / "run", tracking("tensorboard").to_json()) as run:
        writer = MetricsWriter(run, "worker", 0)
        writer.record_step(7, {"accepted": 1, "loss_total": 0.5})
        writer.flush()
        words = ["--run-dir", str(run.path), "--role", "monitor"]
        process = subprocess.Popen([sys.executable, "-m", "launch.role", *words], stderr=subprocess.PIPE)
        deadline = threading.Timer(240, process.kill)
        deadline.start()
        while not list((run.path / "tensorboard").iterdir()):
            assert process.poll() is None
            time.sleep(0.05)
        writer.record_step(9, {"accepted": 1, "loss_total": 0.25})
        writer.flush()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=240)
        deadline.cancel()
    assert process.returncode == 0 and not said
    assert [point.step for point in scalars(run.path / "tensorboard").Scalars("loss/total")] == [7, 9]


@pytest.mark.parametrize(
    ("incarnation", "workers", "again", "poll_s"),
    [(0, 1, False, 1.0), (1, 1, True, 1.0), (2 * PER_START, 64, False, 3.0), (2 * PER_START + 1, 64, True, 3.0)],
)
def test_the_first_monitor_of_each_life_draws_it_from_its_beginning_and_reads_as_often_as_lanes_write(
    tmp_path, monkeypatch, incarnation, workers, again, poll_s
):
    made = []

    class Fake:
        stop_reason = "enough"

        def __init__(self, *_, again, **__):
            made.append(again)

        def follow(self, told_to_end, poll_s=1.0):
            made.append(poll_s)

    monkeypatch.setattr(monitor_module, "Monitor", Fake)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    config = replace_options(TrainConfig(), exchange="servers", num_workers=workers, lanes=12, envs_per_worker=12)
    with RunFolder.create(tmp_path / "run", config.to_json()) as run:
        monitor_role(RunProcess(run, config, 0, incarnation))
    assert made == [again, poll_s]


def test_what_does_not_work_is_in_the_monitors_own_records(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "neptune", None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    run = RunFolder.create(tmp_path / "run", tracking("neptune").to_json())
    MetricsWriter(run, "worker", 0).record_event("joined", "worker 0 joined")
    run.end_life("finished", "done")
    run.release()
    try:
        monitor_role(RunProcess(run, tracking("neptune"), 0, 0))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "pip install 'dba3c[neptune]'" in capsys.readouterr().err
    lines = [json.loads(line) for line in run.metrics_file("monitor", 0).read_text().splitlines()]
    assert "neptune fails" in lines[0]["message"]
