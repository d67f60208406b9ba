"""The real clients of the other trackers, offline or on this machine, given a whole run by `export`."""

import errno
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest

from dba3c.errors import UserError
from dba3c.metrics.monitor import Monitor, export
from dba3c.metrics.sinks import TrackedRun, give
from dba3c.metrics.trackers import check_clients, make_sinks
from dba3c.metrics.writer import MetricsWriter
from dba3c.studies.curve import downsample
from tests.dba3c.metrics.made_up_run import SCORE, START_S
from tests.dba3c.metrics.test_tensorboard import scalars
from tests.refusals import refusing


@pytest.fixture(autouse=True)
def no_tracker_variables(monkeypatch):
    """What the clients read from, or leave in, the environment does not pass from test to test."""
    for name in list(os.environ):
        if name.startswith(("NEPTUNE_", "MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.mark.parametrize("tracker", ["mlflow", "neptune", "wandb"])
def test_a_film_reaches_the_other_trackers(tracker, make_up_run):
    pytest.importorskip(tracker, reason=f"the {tracker} client is not installed")
    if tracker == "mlflow":
        pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no local store")
    run = make_up_run(seconds=5)
    gif = imageio.mimwrite("<bytes>", [np.full((12, 34, 3), 40 * each, np.uint8) for each in range(3)], format="gif")
    (run.videos / "step-300.gif").write_bytes(gif)
    writer = MetricsWriter(run, "recorder", 0)
    writer.record_event("recording", "filmed", step=300, film="videos/step-300.gif")
    writer.close()
    assert export(run.path, tracker) >= 1
    kept = [path for path in (run.path / "exports").rglob("*") if path.is_file() and path.read_bytes() == gif]
    if tracker == "neptune":  # which keeps the path, and reads the file when it is sent
        (log,) = (run.path / "exports" / ".neptune").rglob("data-*.log")
        assert "step-300" in log.read_text()
    else:
        assert kept


def test_neptune_writes_offline_what_it_can_sync_later(make_up_run):
    pytest.importorskip("neptune", reason="the neptune client is not installed")
    run = make_up_run(seconds=30)
    assert export(run.path, "neptune") == 3
    (log,) = (run.path / "exports" / ".neptune" / "offline").rglob("data-*.log")
    text = log.read_text()
    for expected in (
        '"score", "mean"',
        '"optimizer", "gradient_delay_max"',
        '"parameters", "environment", "env_id"',
        "dba3c",
    ):
        assert expected in text
    assert str(SCORE)[:6] in text


def test_neptune_mode_of_the_environment_is_honoured(make_up_run, monkeypatch):
    pytest.importorskip("neptune", reason="the neptune client is not installed")
    monkeypatch.setenv("NEPTUNE_MODE", "debug")
    run = make_up_run(seconds=5)
    export(run.path, "neptune")
    assert not list((run.path / "exports").rglob("data-*.log"))


def test_mlflow_writes_a_local_store(make_up_run):
    tracking = pytest.importorskip("mlflow.tracking", reason="the mlflow client is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no local store")
    run = make_up_run(seconds=30, noted="as many lines as events")
    assert export(run.path, "mlflow") == 3
    check_mlflow(tracking.MlflowClient(f"sqlite:///{run.path}/exports/mlflow.db"))


def test_a_run_that_mlflow_took_half_of_gets_the_rest_of_its_configuration_when_it_is_opened_again(
    make_up_run, monkeypatch
):
    tracking = pytest.importorskip("mlflow.tracking", reason="the mlflow client is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no local store")
    tracked = TrackedRun.of(make_up_run(seconds=2))
    (sink,) = make_sinks(["mlflow"])
    with monkeypatch.context() as busy:
        busy.setattr(tracking.MlflowClient, "log_batch", refusing(errno.ETIMEDOUT))
        with pytest.raises(OSError):
            sink.open(tracked)
    sink.open(tracked)
    sink.close()
    client = tracking.MlflowClient(f"sqlite:///{tracked.folder}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("dba3c").experiment_id])
    assert found.data.params == {key: str(value) for key, value in tracked.parameters().items()}


def test_runs_that_make_mlflows_experiment_at_the_same_time_share_it(make_up_run, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking", reason="the mlflow client is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no local store")
    create = tracking.MlflowClient.create_experiment

    def behind_another(self, name, **more):
        create(self, name, **more)
        return create(self, name, **more)  # "already exists"

    monkeypatch.setattr(tracking.MlflowClient, "create_experiment", behind_another)
    run = make_up_run(seconds=30, noted="as many lines as events")
    assert export(run.path, "mlflow") == 3
    check_mlflow(tracking.MlflowClient(f"sqlite:///{run.path}/exports/mlflow.db"))


def test_an_export_is_another_run_there_though_a_variable_names_the_live_one(make_up_run, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "live")
    tracked = TrackedRun.of(make_up_run(seconds=2))
    assert tracked.said_by("WANDB_RUN_ID", tracked.identity) == "live"
    assert replace(tracked, exported=True).said_by("WANDB_RUN_ID", tracked.identity) == tracked.identity
    monkeypatch.delenv("WANDB_RUN_ID")
    assert tracked.said_by("WANDB_RUN_ID", tracked.identity) == tracked.identity


def check_mlflow(client):
    experiment = client.get_experiment_by_name("dba3c")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == "run"
    assert found.data.params["environment/env_id"] == "ALE/Breakout-v5"
    history = client.get_metric_history(found.info.run_id, "score/mean")
    assert len(history) == 3 and history[-1].value == pytest.approx(SCORE) and history[-1].step == 300
    assert "cluster/active_workers" in found.data.metrics
    told = [value for name, value in found.data.tags.items() if name.startswith("event.")]
    assert sum("checkpoint of step 300" in line for line in told) == 1 and len(told) == 2


def test_an_unreachable_mlflow_server_is_one_line(make_up_run, monkeypatch):
    pytest.importorskip("mlflow.tracking", reason="the mlflow client is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=r"mlflow failed after 0 points: .*127\.0\.0\.1.*") as raised:
        export(make_up_run(seconds=5).path, "mlflow")
    assert "\n" not in str(raised.value)


def test_wandb_writes_an_offline_run(make_up_run):
    pytest.importorskip("wandb", reason="the wandb client is not installed")
    run = make_up_run(seconds=30, noted="as many lines as events")
    assert export(run.path, "wandb") == 3
    (log,) = (run.path / "exports" / "wandb").glob("offline-run-*/*.wandb")
    rows = wandb_rows(log)
    assert [row["score/mean"] for row in rows if "score/mean" in row][-1] == pytest.approx(SCORE)
    told = [(row["step"], row["event"]) for row in rows if "event" in row]
    assert told == [(300, "worker-0: checkpoint of step 300 written"), (300, "worker-0: as many lines as events")]
    assert [row["step"] for row in rows if "score/evaluation_mean" in row] == [250]  # its checkpoint's


def test_wandb_has_the_steps_that_were_made_again_at_their_own_place(rolled_back):
    pytest.importorskip("wandb", reason="the wandb client is not installed")
    assert export(rolled_back.path, "wandb") == 4
    (log,) = (rolled_back.path / "exports" / "wandb").glob("offline-run-*/*.wandb")
    drawn = [(row["step"], row["loss/total"]) for row in wandb_rows(log) if "loss/total" in row]
    assert drawn == [(100, 0.5), (200, 0.5), (300, 0.5), (251, 0.125)]


def test_wandb_numbers_the_rows_of_each_life_itself_and_draws_them_over_our_steps(make_up_run):
    pytest.importorskip("wandb", reason="the wandb client is not installed")
    tracked, rows = TrackedRun.of(make_up_run(seconds=2)), []
    for life, steps in enumerate([(100, 300), (251, 350)]):
        (sink,), folder = make_sinks(["wandb"]), tracked.folder / f"life-{life}"
        folder.mkdir()
        sink.open(replace(tracked, folder=folder, resumed=life > 0))
        for step in steps:
            sink.point({"loss/total": 0.5}, step, START_S + step)
        sink.close()
        (log,) = folder.glob("wandb/offline-run-*/*.wandb")
        rows += [row for row in wandb_rows(log) if row]
    # `_step` is W&B's: of ours it would drop what lies below an earlier life's last; its own it goes on counting there
    assert [(row["step"], row["_step"]) for row in rows] == [(100, 0), (300, 1), (251, 0), (350, 1)]


def wandb_rows(log: Path):
    """The history rows of a .wandb file: protobuf records in LevelDB's log format (blocks of 32 KiB)."""
    from wandb.proto import wandb_internal_pb2

    data, position, part, rows = log.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # a block's rest is too short for a header
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record.FromString(part)
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
            part = b""
    return rows


def test_live_trackers_write_at_the_same_time_from_their_threads(make_up_run, monkeypatch):
    monkeypatch.setattr("dba3c.metrics.monitor.CLOSE_TIMEOUT_S", 240.0)  # they also import themselves in that time
    names = ["tensorboard"]
    for package in ("neptune", "wandb"):
        try:
            __import__(package)
        except ImportError:
            continue
        names.append(package)
    run = make_up_run(seconds=10)
    monitor = Monitor(run, make_sinks(names), warn=lambda message: pytest.fail(message))
    monitor.look(START_S + 10)
    monitor.close()
    assert scalars(run.path / "tensorboard").Scalars("score/mean")
    if "wandb" in names:
        assert list((run.path / "wandb").glob("offline-run-*"))
    if "neptune" in names:
        assert list((run.path / ".neptune").rglob("data-*.log"))


def test_a_folder_that_is_called_like_a_client_is_none(tmp_path, monkeypatch):
    (tmp_path / "a_client").mkdir()  # as W&B leaves ./wandb beside a script
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="tracking with a_client needs its client"):
        check_clients(["a_client"])


def test_a_run_without_records_cannot_be_exported_until_there_are_some(make_run, tmp_path):
    from dba3c.config import TrainConfig

    run = make_run(TrainConfig())
    with pytest.raises(UserError, match="has no records to export"):
        export(run.path, "tensorboard")
    assert not (run.path / "exports").exists()
    writer = MetricsWriter(run, "worker", 0)
    writer.record_step(1, {"accepted": 1})
    writer.close()
    assert export(run.path, "tensorboard") == 1


@pytest.mark.parametrize("host", [None, "node-1"])
def test_a_broken_config_or_life_cannot_be_exported_and_is_one_line(make_up_run, host):
    run = make_up_run(seconds=2)
    meta = json.loads((run.path / "meta.json").read_text())
    meta["lives"][0]["host"] = host
    (run.path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json: host should be an object"):
        export(run.path, "tensorboard")
    (run.path / "config.json").write_text(json.dumps({"environment": "x"}))
    with pytest.raises(UserError, match=r"config\.json: environment should be an object"):
        export(run.path, "tensorboard")


def test_exporting_leaves_the_rest_of_the_run_as_it_is(make_up_run, tmp_path):
    run = make_up_run(seconds=5)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    export(run.path, "tensorboard", into=tmp_path / "elsewhere")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_an_export_into_the_run_itself_does_not_call_its_trackers_folders_an_earlier_one(make_up_run):
    run = make_up_run(seconds=5)
    with pytest.raises(UserError, match="is where the run's own trackers write: choose another folder"):
        export(run.path, "tensorboard", into=run.path)


def test_an_earlier_export_is_not_doubled_and_a_committed_run_not_written_into(make_up_run, tmp_path):
    run = make_up_run(seconds=5)
    export(run.path, "tensorboard")
    with pytest.raises(UserError, match=r"exports/tensorboard holds an earlier export: remove it, or choose"):
        export(run.path, "tensorboard")
    assert export(run.path, "tensorboard", into=tmp_path / "elsewhere")
    committed = downsample(run.path, tmp_path / "committed").parent
    with pytest.raises(UserError, match="is a committed run"):
        export(committed, "tensorboard")
    assert not (committed / "exports").exists()


def test_of_an_export_that_fails_half_way_nothing_is_left_in_the_next_ones_way(make_up_run, monkeypatch):
    run = make_up_run(seconds=5)
    given = iter([None])

    def fails_at_the_second_point(sink, happened, path):
        if next(given, "full") == "full":
            raise OSError("no space left")
        give(sink, happened, path)

    monkeypatch.setattr("dba3c.metrics.monitor.give", fails_at_the_second_point)
    with pytest.raises(UserError, match="tensorboard failed after 0 points: no space left"):
        export(run.path, "tensorboard")
    assert not list((run.path / "exports").iterdir())
    monkeypatch.undo()
    assert export(run.path, "tensorboard")


def test_no_torch_is_imported_before_a_tracker_is_given_anything():
    code = "import sys, dba3c.metrics.monitor, dba3c.metrics.trackers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_mlflows_small_client_without_a_server_says_what_it_needs(make_up_run, monkeypatch):
    pytest.importorskip("mlflow.tracking", reason="the mlflow client is not installed")
    monkeypatch.setattr("dba3c.metrics.trackers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="mlflow-skinny has no local store: set MLFLOW_TRACKING_URI"):
        export(make_up_run(seconds=2).path, "mlflow")
