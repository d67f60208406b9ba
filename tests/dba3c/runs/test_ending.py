"""How a run ends: its limits, and who hears of it."""

import errno
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from dba3c.runs import ending
from dba3c.runs import folder as folder_module
from dba3c.runs.ending import RunEnd, StopRule, note_failure, outcome
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from param_servers.errors import RunBroken


@pytest.mark.parametrize("finished", [True, False])
def test_the_monitor_of_a_finished_run_waits_for_its_evaluator_and_of_a_stopped_one_does_not(tmp_path, finished):
    with RunFolder.create(tmp_path / "run", {"run": {"evaluation_budget_s": 40.0, "evaluators": 1}}) as run:
        is_over = RunEnd(run, look_s=0.0).nothing_more_comes
        assert not is_over(silent_s=50.0)
        run.request_stop("enough", finished=finished)
        assert not is_over(silent_s=0.0)
        assert is_over(silent_s=50.0) is not finished
        assert is_over(silent_s=101.0)  # its patience has an end
        run.note_left("evaluator", 0)
        assert is_over(silent_s=50.0)


def test_the_monitor_of_many_lanes_waits_for_two_of_their_windows(tmp_path):
    config = replace_options(TrainConfig(), exchange="allreduce", num_workers=64, lanes=12, envs_per_worker=12)
    with RunFolder.create(tmp_path / "run", config.to_json()) as run:
        is_over = RunEnd(run, look_s=0.0).nothing_more_comes
        run.request_stop("enough")
        assert not is_over(silent_s=23.0)
        assert is_over(silent_s=25.0)


def test_a_lock_that_is_away_for_a_moment_is_no_end_of_the_run_for_its_monitor(tmp_path, monkeypatch):
    with RunFolder.create(tmp_path / "run", {}) as run:
        run_end = RunEnd(run, look_s=0.0)
        (run.path / "lock.json").rename(run.path / "moved.json")
        assert not run_end.nothing_more_comes(silent_s=0.0)
        monkeypatch.setattr(ending, "GONE_AFTER_S", -1.0)
        assert run_end.nothing_more_comes(silent_s=0.0)
        (run.path / "moved.json").rename(run.path / "lock.json")
        assert not run_end.nothing_more_comes(silent_s=0.0)


def test_a_run_that_has_seen_its_frames_ends_also_when_the_disk_cannot_note_why(tmp_path, monkeypatch, capsys):
    def full(path, *_, **__):
        raise UserError(f"cannot write {path}: No space left on device")

    run = RunFolder.create(tmp_path / "run", {})
    monkeypatch.setattr(folder_module, "write_once", full)
    rule = StopRule(run, replace_options(TrainConfig(), total_frames=100))
    assert rule(1, 10**6) == "4,000,000 frames trained on"
    assert "stop.json: No space left on device" in capsys.readouterr().err
    run.release()


def test_a_clock_that_is_set_changes_no_runs_hours(tmp_path, monkeypatch):
    with RunFolder.create(tmp_path / "run", {}) as run:
        rule = StopRule(run, replace_options(TrainConfig(), max_hours=0.5))
        now = time.time()
        monkeypatch.setattr(ending.time, "time", lambda: now + 7200)
        assert rule(1, 1) is None


def test_hours_are_those_of_the_life_whenever_its_coordinator_came(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        meta = run.meta()
        meta["lives"][0]["started_s"] -= 1800
        run._write_meta(meta)
        assert StopRule(run, replace_options(TrainConfig(), max_hours=0.51))(1, 1) is None
        assert StopRule(run, replace_options(TrainConfig(), max_hours=0.49))(1, 1) == "0.49 hours of this life are over"
        assert run.has_finished()


def test_a_folder_that_cannot_be_read_for_a_while_ends_no_run_and_for_a_minute_it_does(tmp_path, monkeypatch):
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.request_stop("enough")
        clock = iter([1000.0, 1100.0, 1150.0, 1161.0, 1162.0])  # the first error counts, not the last success
        monkeypatch.setattr(ending, "time", SimpleNamespace(monotonic=lambda: next(clock), time=time.time))
        rule = StopRule(run, TrainConfig())
        with monkeypatch.context() as nothing_yet:
            nothing_yet.setattr(RunFolder, "stop_reason", lambda self: None)
            assert rule(1, 1) is None
        with monkeypatch.context() as away:
            away.setattr(RunFolder, "stop_reason", lambda self: _raise(OSError(errno.EIO, "Input/output error")))
            assert [rule(1, 1), rule(1, 1)] == [None, None]
            with pytest.raises(RunBroken, match="cannot be read for 60 s: .*Input/output error"):
                rule(1, 1)
        assert rule(1, 1) == "enough"


def _raise(error):
    raise error


def test_who_stops_a_run_that_has_finished_waits_for_its_end_and_its_reason_stays(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.request_stop("enough", finished=True)
        run.request_stop("SIGINT")
        assert (run.stop_reason(), run.has_finished()) == ("enough", False)


@pytest.mark.parametrize(
    ("reason", "how"),
    [
        ("SIGINT", "stopped"),
        (STOP_COMMAND, "stopped"),
        ("SIGTERM at worker 3", "stopped"),
        ("score 300 reached", "finished"),
    ],
)
def test_what_ended_a_run_decides_whether_a_study_goes_on_with_it(tmp_path, reason, how):
    with RunFolder.create(tmp_path / "run", {}) as run:
        assert outcome(0, run)[0] == "finished"  # it saw everything
        run.request_stop(reason)
        assert outcome(0, run) == (how, reason)
        assert outcome(1, run)[0] == "failed"


def test_a_run_that_ended_because_it_could_not_go_on_has_failed_however_well_its_chief_left(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.request_stop("server 1 failed (killed by SIGILL)", failed=True)
        assert outcome(0, run) == ("failed", "server 1 failed (killed by SIGILL)")


def test_what_fails_after_a_run_was_asked_to_end_otherwise_is_not_why_it_ended(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.request_stop("enough", finished=True)
        run.request_stop("evaluator 0 failed", failed=True)
        assert outcome(0, run) == ("finished", "enough")


def test_what_a_role_refused_makes_the_run_a_failed_one(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.request_stop("worker 3: no such game")
        note_failure(run.path, "recorder", 0, 2, "no camera")
        note_failure(run.path, "worker", 2, 1, "lost, the run went on")
        assert outcome(0, run) == ("finished", "worker 3: no such game")
        note_failure(run.path, "worker", 3, 2, "no such game")
        assert outcome(0, run) == ("failed", "worker 3: no such game")


def test_a_refusal_is_its_life_s_whatever_the_clock_of_the_node_that_noted_it_says(tmp_path, monkeypatch):
    def noted(by_s):
        clock = SimpleNamespace(time=lambda: time.time() + by_s)
        with monkeypatch.context() as node:
            node.setattr(ending, "time", clock)
            note_failure(run.path, "worker", 3, 2, "no such game")

    with RunFolder.create(tmp_path / "run", {}) as run:
        noted(by_s=-30.0)
        assert outcome(0, run)[0] == "failed"
        noted(by_s=3000.0)
    with RunFolder.launch(run.path, None, resume=True) as run:
        assert outcome(0, run)[0] == "finished"


def test_where_no_heartbeat_can_be_written_a_launch_is_not_gone(tmp_path, monkeypatch):
    with RunFolder.create(tmp_path / "run", TrainConfig().to_json()) as run:
        clock = SimpleNamespace(monotonic=lambda: clock.now_s, time=time.time, now_s=0.0)
        monkeypatch.setattr(ending, "time", clock)
        monkeypatch.setattr(RunFolder, "status", lambda self: "broken")
        run_end = RunEnd(run)
        with monkeypatch.context() as read_only:
            read_only.setattr(Path, "touch", lambda self: _raise(OSError(errno.EROFS, "Read-only file system")))
            for clock.now_s in (1.0, 300.0):
                assert run_end() is None
        clock.now_s += 2.0
        assert run_end() is None  # from now on it could be
        clock.now_s += 300.0
        with pytest.raises(RunBroken, match="nobody has held its lock"):
            run_end()
