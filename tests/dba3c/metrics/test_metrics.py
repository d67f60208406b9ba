"""What a process writes down, and what no disk and no crash can do to it."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from dba3c.config import RunConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import Episode, Experience
from dba3c.errors import UserError
from dba3c.metrics.charts import ChartInterval, Point, points_of
from dba3c.metrics.facts import RunFacts
from dba3c.metrics.summary import RunSummary
from dba3c.metrics.writer import GradientRecorder, MetricsWriter, Sections
from dba3c.roles import RunProcess
from dba3c.runs.folder import RunFolder
from param_servers.config import ExchangeConfig
from param_servers.exchange import Receipt
from tests.dba3c.metrics.made_up_run import Clock


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when told to."""

    clock = Clock(100.0)
    clock.tells_writers(monkeypatch)
    return clock


def test_steps_of_a_window_become_one_record_reduced_by_each_metrics_rule(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "worker", 3, incarnation=1, window_s=1.0)
    writer.record_step(
        7, {"accepted": 1, "loss_total": 1.0, "staleness_min": 0, "staleness_max": 0}, {"environment": 0.2}
    )
    clock.now_s += 2.0
    second = {"accepted": 0, "dropped": 1, "loss_total": 4.0, "staleness_min": 2, "staleness_max": 2}
    writer.record_step(9, second, {"environment": 0.3, "waiting": 0.1})
    (record,) = lines(tmp_path / "metrics" / "worker-3.jsonl")
    assert record == {
        "kind": "step", "time_s": 102.0, "step": 9, "role": "worker", "rank": 3, "incarnation": 1,
        "window_s": 2.0, "cpu_s": 2.0, "count": 2, "accepted": 1, "dropped": 1, "loss_total": 2.5,
        "staleness_min": 0, "staleness_max": 2, "sections_s": {"environment": 0.5, "waiting": 0.1},
    }  # fmt: skip


def test_768_lanes_write_a_record_in_twelve_seconds_each_and_their_servers_go_on_writing_one_in_each(tmp_path, clock):
    exchange = ExchangeConfig(exchange="servers", num_workers=64, num_servers=4)
    environment = EnvironmentConfig(lanes=12, envs_per_worker=12)
    config = TrainConfig(exchange=exchange, environment=environment)
    process = RunProcess(RunFolder(tmp_path), config, rank=3, incarnation=0, lane=5)
    lane, server = MetricsWriter.of(process, "worker"), MetricsWriter.of(replace(process, lane=0), "server")
    for step in range(24):
        lane.record_step(step, {"agent_steps": 1})
        server.record_report({"step": step})
        clock.now_s += 1.0
    assert [record["count"] for record in lines(tmp_path / "metrics" / "worker-3.5.jsonl")] == [13]
    assert len(lines(tmp_path / "metrics" / "server-3.jsonl")) == 23


@pytest.mark.parametrize("lanes", [1, 64])
def test_where_writers_are_few_a_window_of_nothing_writes_every_step(tmp_path, clock, lanes):
    config = TrainConfig(
        environment=EnvironmentConfig(lanes=lanes, envs_per_worker=lanes), run=RunConfig(metrics_window_s=0.0)
    )
    writer = MetricsWriter.of(RunProcess(RunFolder(tmp_path), config, rank=0, incarnation=0), "worker")
    for step in range(5):
        writer.record_step(step, {"agent_steps": 1})
    assert [record["step"] for record in lines(tmp_path / "metrics" / "worker-0.jsonl")] == [0, 1, 2, 3, 4]


def test_after_a_roll_back_a_waiting_window_does_not_bring_the_undone_step_back(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "worker", 0, window_s=1.0)
    writer.record_step(1000, {"accepted": 1})
    clock.now_s += 2.0
    writer.record_episode(801, Episode(3.0, 10, True, False))  # of the rollout after it
    assert [record["step"] for record in lines(tmp_path / "metrics" / "worker-0.jsonl")] == [801, 801]


def test_a_window_that_is_not_over_waits_for_flush(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "worker", 0, window_s=1.0)
    writer.record_step(1, {"accepted": 1})
    writer.record_episode(1, Episode(3.0, 10, True, False))
    assert not (tmp_path / "metrics" / "worker-0.jsonl").exists()
    writer.flush()
    assert [record["kind"] for record in lines(tmp_path / "metrics" / "worker-0.jsonl")] == ["episode", "step"]


def test_what_is_reported_keeps_the_seconds_that_it_was_counted_over(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "server", 0, window_s=1.0)
    for step, window_s in ((5, 1.25), (9, 0.5)):
        clock.now_s += 0.4
        figures = {"commits": 5, "window_s": window_s, "sections_s": {"applying": 0.1}, "term": 1}
        writer.record_report({"step": step, **figures})
    writer.record_event("left", "worker 2 left", step=9)
    clock.now_s += 0.002
    writer.record_report({"step": 19, "commits": 10, "window_s": 0.75})
    writer.close()
    found = [line for line in lines(tmp_path / "metrics" / "server-0.jsonl") if line["kind"] == "server"]
    assert [(line["commits"], line["window_s"]) for line in found] == [(10, 1.75), (10, 0.75)]
    assert found[0]["sections_s"] == {"applying": 0.2}


def test_a_line_for_people_does_not_shorten_the_window_of_the_steps_around_it(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "worker", 0, window_s=1.0)
    clock.now_s += 3.0
    writer.record_event("checkpoint", "checkpoint of step 1 written", step=1)
    clock.now_s += 0.5
    writer.record_step(2, {"accepted": 1})
    writer.close()
    assert lines(tmp_path / "metrics" / "worker-0.jsonl")[1]["window_s"] == 3.5


def test_records_together_have_all_of_the_processor_time(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "evaluator", 0, window_s=100.0)
    clock.now_s += 3.0
    writer.record_evaluation(5, None, score_mean=1.0)
    clock.now_s += 2.0
    writer.record_step(6, {"accepted": 1})
    writer.record_event("note", "half way")
    clock.now_s += 4.0
    writer.record_step(7, {"accepted": 1})
    writer.close()
    told = [(record["kind"], record["cpu_s"]) for record in lines(tmp_path / "metrics" / "evaluator-0.jsonl")]
    assert sum(seconds for _, seconds in told) == 9.0 and told[0] == ("evaluation", 3.0)


def test_a_launchers_events_count_no_processor_time_which_may_be_a_notebooks(tmp_path, clock):
    writer = MetricsWriter(RunFolder(tmp_path), "launcher", 0)
    clock.now_s += 1800.0
    writer.record_event("restarted", "worker 0 restarted")
    assert lines(tmp_path / "metrics" / "launcher-0.jsonl")[0]["cpu_s"] == 0.0


def test_an_event_is_written_at_once(tmp_path, clock):
    MetricsWriter(RunFolder(tmp_path), "server", 0).record_event("joined", "worker 2 joined at step 5", step=5)
    (record,) = lines(tmp_path / "metrics" / "server-0.jsonl")
    assert (record["event"], record["message"], record["step"]) == ("joined", "worker 2 joined at step 5", 5)


def test_numbers_that_are_not_finite_become_null_and_are_counted(tmp_path):
    writer = MetricsWriter(RunFolder(tmp_path), "worker", 0)
    writer.record_step(1, {"loss_total": math.nan, "entropy": math.inf})
    writer.record_step(2, {"loss_total": 3.0, "entropy": -math.inf})
    writer.record_episode(2, Episode(math.nan, 1, True, False))
    writer.close()
    episode, step = lines(tmp_path / "metrics" / "worker-0.jsonl")
    assert step["loss_total"] == 3.0 and step["entropy"] is None
    assert step["not_finite"] == {"loss_total": 1, "entropy": 2}
    assert episode["score"] is None and episode["not_finite"] == {"score": 1}


def test_a_mean_that_not_every_step_has_weighs_as_much_as_its_values(tmp_path):
    run = RunFolder(tmp_path)
    writer = MetricsWriter(run, "worker", 0)
    writer.record_step(1, {"loss_total": 0.1, "entropy": 1.0})
    for _ in range(9):
        writer.record_step(1, {"loss_total": 0.1})
    writer.flush()
    writer.record_step(2, {"loss_total": 0.1, "entropy": 3.0})
    writer.close()
    first, second = lines(tmp_path / "metrics" / "worker-0.jsonl")
    assert first["given"] == {"entropy": 1} and "given" not in second
    interval = ChartInterval(RunSummary(RunFacts("run")))
    for record in (first, second):
        interval.add(record)
    assert interval.take(second["time_s"])["policy/entropy"] == 2.0


def test_an_unknown_metric_is_refused_naming_the_nearest(tmp_path):
    with pytest.raises(UserError, match="unknown step metric 'loss_totl'; did you mean loss_total"):
        MetricsWriter(RunFolder(tmp_path), "worker", 0).record_step(1, {"loss_totl": 1.0})


def test_an_evaluation_has_its_interval(tmp_path):
    writer = MetricsWriter(RunFolder(tmp_path), "evaluator", 0)
    scores = {"mean": 1.5, "median": 1.0, "iqm": 1.25, "max": 4.0}
    writer.record_evaluation(90, checkpoint_step=80, games=4, interval_95=(1.0, 2.0), **scores)
    (record,) = lines(tmp_path / "metrics" / "evaluator-0.jsonl")
    assert record["interval_95"] == [1.0, 2.0] and record["checkpoint_step"] == 80 and record["iqm"] == 1.25


FULL_DISK = """
import resource, sys, json
from pathlib import Path
from dba3c.environments.protocol import Episode
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from param_servers import line_file
line_file.BACKLOG_LINES = 20
soft, hard = 4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
warnings = []
writer = MetricsWriter(RunFolder(Path(sys.argv[1])), "worker", 0, window_s=0.0, warn=warnings.append)
for step in range(200):
    writer.record_episode(step, Episode(float(step), 1, True, False))
print(json.dumps(warnings))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.record_event("checkpoint", "the disk has room again")
writer.close()
print(json.dumps(warnings))
"""


def test_a_full_disk_costs_one_warning_and_nothing_that_was_on_disk(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    while_full, (_, afterwards) = map(json.loads, done.stdout.splitlines())
    assert len(while_full) == 1 and "File too large" in while_full[0]
    lost = int(re.search(r"(\d+) records could not be written", afterwards)[1])
    assert lost > 100
    text = (tmp_path / "metrics" / "worker-0.jsonl").read_text()
    good = [json.loads(line) for line in text.splitlines()]
    assert len(good) + lost == 201
    assert good[-1]["message"] == "the disk has room again"
    steps = [record["step"] for record in good[:-1]]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == 199


def test_a_folder_that_cannot_be_written_never_stops_training(tmp_path):
    (tmp_path / "metrics").write_text("a file where the folder should be")
    warnings = []
    writer = MetricsWriter(RunFolder(tmp_path), "worker", 0, window_s=0.0, warn=warnings.append)
    for step in range(10):
        writer.record_step(step, {"accepted": 1})
    assert len(warnings) == 1
    writer.close()
    assert "10 records could not be written" in warnings[1]


def test_games_and_steps_without_a_gradient_weigh_no_loss(tmp_path, clock):
    run = RunFolder.create(tmp_path / "run", TrainConfig().to_json())
    writer = MetricsWriter(run, "worker", 0, window_s=1e9)
    recorder = GradientRecorder(writer)

    def learn(step, loss):
        recorder.record(Receipt(True, step, ""), step - 1, 64, {"loss_total": loss}, Sections())

    learn(1, 10.0)
    for _ in range(9):
        recorder.stepped(1, Experience(10, 40), [Episode(1.0, 10, True, False, 0)])
        recorder.finish()
    writer.flush()
    for step in range(2, 11):
        learn(step, 0.0)
    writer.close()
    drawn = [point.values["loss/total"] for point in points_of(run, 60.0) if isinstance(point, Point)]
    assert drawn == [1.0]  # of ten gradients
    assert [line["score"] for line in lines(run.metrics / "worker-0.jsonl") if line["kind"] == "episode"] == [1.0] * 9
    run.release()


def test_sections_add_up_until_they_are_taken(clock):
    sections = Sections()
    for seconds in (1.0, 2.0):
        with sections("environment"):
            clock.now_s += seconds
    with sections("learning"):
        clock.now_s += 4.0
    assert sections.take() == {"environment": 3.0, "learning": 4.0}
    assert sections.take() == {"environment": 0.0, "learning": 0.0}


def test_a_section_that_raises_is_timed_and_the_error_goes_on(clock):
    sections = Sections()
    with pytest.raises(KeyError), sections("environment"):
        clock.now_s += 1.0
        raise KeyError
    assert sections.take() == {"environment": 1.0}
