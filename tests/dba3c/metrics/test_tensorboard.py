"""TensorBoard's own reader, given what a run's monitor or an export drew."""

import re
from dataclasses import replace

import imageio.v2 as imageio
import numpy as np
import pytest

from dba3c.metrics.monitor import Monitor, export
from dba3c.metrics.registry import PER_WORKER_CHARTS, charts, tracker_name
from dba3c.metrics.sinks import TrackedRun
from dba3c.metrics.trackers import make_sinks
from dba3c.metrics.writer import MetricsWriter
from tests.dba3c.metrics.made_up_run import SCORE, START_S, set_lives


@pytest.fixture(autouse=True)
def first_writers(monkeypatch):
    """TensorBoard numbers the files of a process, and of those begun in one second it reads the 10th before the 9th."""
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_tensorboard_reads_back_every_chart(make_up_run):
    run = make_up_run(seconds=30)
    assert export(run.path, "tensorboard") == 3
    events = scalars(run.path / "exports" / "tensorboard")
    scores = events.Scalars("score/mean")
    assert len(scores) == 3 and scores[-1].step == 300
    assert scores[-1].value == pytest.approx(SCORE)
    assert abs(scores[-1].wall_time - (START_S + 30)) < 1
    assert "workers/dropped_share_worker-1" in events.Tags()["scalars"]
    (told,) = events.Tensors("events")
    assert b"checkpoint of step 300 written" in told.tensor_proto.string_val[0]
    groups = {tag.split("/")[0] for tag in events.Tags()["scalars"]}
    assert groups <= {"score", "speed", "loss", "optimizer", "workers", "cluster"} and "score" in groups


def test_tensorboard_has_the_configuration_as_hyperparameters_and_the_score_first_in_its_layout(make_up_run):
    from tensorboard.plugins.custom_scalar import layout_pb2
    from tensorboard.plugins.hparams import metadata

    run = make_up_run(seconds=10)
    export(run.path, "tensorboard")
    events = scalars(run.path / "exports" / "tensorboard")
    contents = events.PluginTagToContent("hparams")
    options = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG]).hparams
    assert options["environment/env_id"].string_value == "ALE/Breakout-v5"
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    assert {info.name for info in experiment.hparam_infos} == set(options)
    assert experiment.metric_infos[0].name.tag == "score/mean"
    (told,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(told.tensor_proto.string_val[0])
    assert next(category.title for category in layout.category) == "Score"
    known = {tracker_name(chart) for chart in charts()}
    known |= {tracker_name(f"worker-3/{name}") for name in PER_WORKER_CHARTS}
    drawn = [tag for category in layout.category for chart in category.chart for tag in chart.multiline.tag]
    assert [tag for tag in drawn if not any(re.match(tag, name) for name in known)] == []


def test_a_film_and_an_evaluation_reach_tensorboard(make_up_run):
    run = make_up_run(seconds=10)
    gif = imageio.mimwrite("<bytes>", [np.zeros((12, 34, 3), np.uint8)] * 3, format="gif")
    (run.videos / "step-300.gif").write_bytes(gif)
    writer = MetricsWriter(run, "recorder", 0)
    writer.record_event("recording", "filmed", step=300, film="videos/step-300.gif")
    writer.record_event("recording", "its file is gone", step=300, film="videos/step-1.gif")
    writer.record_evaluation(300, (1.0, 2.0), checkpoint_step=300, games=9, mean=7.5, median=7.0, iqm=7.25, max=9.0)
    writer.close()
    export(run.path, "tensorboard")
    events = scalars(run.path / "exports" / "tensorboard")
    (film,) = events.Images("film")
    assert (film.width, film.height, film.encoded_image_string) == (34, 12, gif)
    *_, table = events.Tensors("evaluations")
    assert b"300 | 7.5 | 7 | 7.25 | 9" in table.tensor_proto.string_val[0]
    assert events.Scalars("score/evaluation_iqm")[-1].value == 7.25


def test_tensorboards_table_of_evaluations_keeps_the_newest_hundred(make_up_run, monkeypatch):
    (sink,), tables = make_sinks(["tensorboard"]), []
    sink.open(TrackedRun.of(make_up_run(seconds=2)))
    monkeypatch.setattr(sink, "_text", lambda tag, text, *_: tables.append(text) if tag == "evaluations" else None)
    for step in range(150):
        sink.point({"score/evaluation_mean": 1.0}, step, START_S)
    sink.close()
    _, _, oldest, *_, newest = tables[-1].splitlines()
    assert (oldest.split(" | ")[0], newest.split(" | ")[0]) == ("50", "149")


def test_a_resumed_life_cuts_off_what_tensorboard_had_after_its_checkpoint(make_up_run):
    run = make_up_run(seconds=30)
    first = Monitor(run, make_sinks(["tensorboard"]))
    first.look(START_S + 30)
    first.close()
    set_lives(run, (START_S, START_S + 30, 2), (START_S + 100, None, 2))
    writer = MetricsWriter(run, "worker", 0)
    second = Monitor(run, make_sinks(["tensorboard"]))
    writer.record_step(251, {"accepted": 1, "loss_total": 0.125})
    writer.close()
    second.look(START_S + 101)
    second.close()
    steps = [event.step for event in scalars(run.path / "tensorboard").Scalars("loss/total")]
    assert steps == [251], steps


def test_a_monitor_that_was_started_again_keeps_in_tensorboard_what_was_drawn_before(make_up_run):
    run = make_up_run(seconds=30, finished=False)
    for again in (False, True):
        monitor = Monitor(run, make_sinks(["tensorboard"]), again=again)
        if again:
            writer = MetricsWriter(run, "worker", 0)
            writer.record_step(301, {"accepted": 1, "loss_total": 0.125})
            writer.close()
        monitor.look(START_S + 30 + 30 * again)
        monitor.close()
    steps = [event.step for event in scalars(run.path / "tensorboard").Scalars("loss/total")]
    assert len(steps) > 1 and steps[-1] == 301
    run.release()


def test_events_of_a_resumed_life_before_its_first_point_are_kept_in_tensorboard(make_up_run):
    run = make_up_run(seconds=2)
    for resumed, steps in ((False, (100, 300)), (True, (251,)), (True, ())):
        (sink,) = make_sinks(["tensorboard"])
        sink.open(replace(TrackedRun.of(run), resumed=resumed))
        sink.event(f"joined at {steps}", 300, START_S)  # what was undone is not known yet
        for step in steps:
            sink.point({"loss/total": 0.5}, step, START_S)
        sink.event("later", 260, START_S)
        sink.close()
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"))  # what TensorBoard shows texts by: it purges them, too
    events.Reload()
    told = events.Tensors("events")
    words = [(event.step, event.tensor_proto.string_val[0].decode()) for event in told]
    assert words == [(251, "joined at (251,)"), (260, "later"), (300, "joined at ()"), (260, "later")]


def test_an_export_has_no_steps_in_tensorboard_that_a_roll_back_undid(rolled_back):
    export(rolled_back.path, "tensorboard")
    events = scalars(rolled_back.path / "exports" / "tensorboard")
    assert [event.step for event in events.Scalars("loss/total")] == [100, 200, 251]
    assert [event.step for event in events.Scalars("score/evaluation_mean")] == [250]  # came later, of before


def test_a_late_evaluation_of_an_older_checkpoint_undoes_nothing_in_tensorboard(make_up_run):
    run = make_up_run(seconds=2)
    for resumed in (False, True):
        (sink,) = make_sinks(["tensorboard"])
        sink.open(replace(TrackedRun.of(run), resumed=resumed))
        sink.point({"score/evaluation_mean": 1.0}, 50, START_S)
        for step in (260, 310) if resumed else (100, 200, 300):
            sink.point({"loss/total": 0.5}, step, START_S)
            sink.point({"score/evaluation_mean": 1.0}, step - 50, START_S)
        sink.close()
    events = scalars(run.path / "tensorboard")
    assert [event.step for event in events.Scalars("loss/total")] == [100, 200, 260, 310]
    evaluated = [event.step for event in events.Scalars("score/evaluation_mean")]
    assert evaluated == [50, 50, 150, 250, 50, 210, 260]
