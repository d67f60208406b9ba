"""A run's folder: who may write to it, and what is in it."""

import contextlib
import errno
import multiprocessing
import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dba3c.errors import UserError
from dba3c.runs import folder as run_folder
from dba3c.runs import lock as run_lock
from dba3c.runs.files import check_writable
from dba3c.runs.folder import RunFolder
from dba3c.studies.study import StudyPoint, StudyRun
from tests.dba3c.runs.finished_run import CONFIG, finished_run
from tests.refusals import refusing


def test_a_new_run_has_its_config_folders_and_facts(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG, launcher="local", topology={"workers": 2}, cores=2) as run:
        assert run.config() == CONFIG
        life = run.life()
        assert life["topology"] == {"workers": 2} and life["cores"] == 2 and "torch" in life["versions"]
        assert run.checkpoints.is_dir() and run.metrics.is_dir() and run.status() == "live"


def test_the_environment_is_never_written_down(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "do-not-leak-me")
    with RunFolder.create(tmp_path / "run", CONFIG):
        pass
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or "do-not-leak-me" not in path.read_text()


def test_the_configuration_is_kept_as_given(tmp_path):
    text = '{\n  "learning_rate": 7e-4\n}\n'
    with RunFolder.create(tmp_path / "run", text) as run:
        assert (run.path / "config.json").read_text() == text


def test_a_finished_run_is_resumed_only_when_asked(tmp_path):
    assert finished_run(tmp_path / "run").status() == "finished"
    with pytest.raises(UserError, match=rf'already holds a run: .*; in Python: dba3c\.resume\("{tmp_path}/run"\)$'):
        RunFolder.create(tmp_path / "run", CONFIG)
    with RunFolder.launch(tmp_path / "run", None, resume=True) as run:
        assert run.config() == CONFIG
        assert len(run.meta()["lives"]) == 2 and run.status() == "live"


def test_a_folder_of_other_things_is_not_made_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"not a run folder and not empty \(thesis.tex\)"):
        RunFolder.create(tmp_path, CONFIG)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / ".bashrc").write_text("of a home")
    (tmp_path / "thesis.tex").unlink()
    with pytest.raises(UserError, match=r"not empty \(.bashrc\)"):
        RunFolder.create(tmp_path, CONFIG)
    (tmp_path / ".bashrc").rename(tmp_path / ".nfs0000000001")
    RunFolder.create(tmp_path, CONFIG).release()


def test_ranks_that_look_whether_they_can_write_there_are_no_strangers(tmp_path, monkeypatch):
    """They do so while the chief looks at the same folder, and it at the same time in its checkpoints."""
    seen, replace = [], os.replace

    def looked_at(source, target):
        seen.extend(path.relative_to(tmp_path) for path in (source, target))
        RunFolder.refuse_launch(tmp_path, resume=False)
        replace(source, target)
        RunFolder.refuse_launch(tmp_path, resume=False)

    with monkeypatch.context() as while_writing:
        while_writing.setattr("dba3c.runs.files.os.replace", looked_at)
        for folder in (tmp_path, tmp_path / "checkpoints"):
            check_writable(folder)
    assert len(seen) == 4
    RunFolder.create(tmp_path, CONFIG).release()


def test_what_is_left_of_a_run_is_not_made_the_beginning_of_another(tmp_path):
    RunFolder.create(tmp_path, CONFIG).release()
    (tmp_path / "config.json").unlink()
    (tmp_path / "checkpoints" / "step-7").mkdir()
    with pytest.raises(UserError, match=r"holds checkpoints of a run, and no config.json: choose another folder"):
        RunFolder.create(tmp_path, CONFIG)


def test_resuming_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing to resume"):
        RunFolder.launch(tmp_path / "run", None, resume=True)


def test_a_folder_that_cannot_be_looked_into_is_one_line_and_not_taken_for_missing(tmp_path, monkeypatch):
    stale = refusing(errno.ESTALE)

    with RunFolder.create(tmp_path / "run", CONFIG) as run, monkeypatch.context() as outage:
        outage.setattr(Path, "stat", stale)
        for look in (run.meta, lambda: run.published("server-0")):
            with pytest.raises(UserError, match=r"cannot read .*json: Stale file handle"):
                look()
        assert "Stale file handle" in StudyRun(point=StudyPoint(name="a", words=()), seed=0, folder=run.path).state()


def test_a_broken_config_is_named(tmp_path):
    run = finished_run(tmp_path / "run")
    (run.path / "config.json").write_text('{"a": ')
    with pytest.raises(UserError, match=r"config.json is not valid JSON"):
        RunFolder.open(run.path).config()


def test_a_folder_of_runs_that_is_taken_for_one_names_the_first_of_them(tmp_path, monkeypatch):
    for name in ("b/seed-1", "b/seed-0", "a", "c", "too/deep/seed-0"):
        finished_run(tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    why = r"config\.json is missing or not its own; did you mean "
    with pytest.raises(UserError, match=rf"{why}runs/a or runs/c or runs/b/seed-0\?$"):
        RunFolder.open("runs")
    with pytest.raises(UserError, match=rf"{why}runs/too/deep/seed-0\?$"):
        RunFolder.open("runs/too")
    with pytest.raises(UserError, match="config.json is missing or not its own$"):
        RunFolder.open("runs/a/metrics")
    monkeypatch.chdir(tmp_path / "runs" / "b")
    with pytest.raises(UserError, match=rf"{why}{tmp_path}/runs/a or "):
        RunFolder.open(tmp_path / "runs")


def test_opening_waits_for_the_launch_it_belongs_to(tmp_path):
    finished_run(tmp_path / "run")
    with pytest.raises(UserError, match="of launch job-7"):
        RunFolder.open(tmp_path / "run", wait_s=0.05, launch_id="job-7")
    with RunFolder.launch(tmp_path / "run", None, resume=True, launch_id="job-7"):
        assert RunFolder.open(tmp_path / "run", launch_id="job-7").life()["launch_id"] == "job-7"


def test_who_waits_long_for_a_launch_looks_seldom(tmp_path, monkeypatch):
    now_s, looked_s = [0.0], []

    def sleep(seconds):
        now_s[0] += seconds

    monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    with pytest.raises(UserError, match="after 120 s"):
        RunFolder.open(tmp_path / "run", wait_s=120, while_waiting=lambda: looked_s.append(now_s[0]))
    assert sum(look_s < 1 for look_s in looked_s) > 10 and sum(look_s > 20 for look_s in looked_s) < 210
    assert 120 <= now_s[0] < 121


def test_the_secret_is_private_made_once_and_the_environment_wins(tmp_path, monkeypatch):
    monkeypatch.delenv("DBA3C_SECRET", raising=False)
    run = finished_run(tmp_path / "run")
    path = run.path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run.secret() == run.secret() == path.read_text().strip() and len(run.secret()) == 64
    monkeypatch.setenv("DBA3C_SECRET", "given")
    assert run.secret() == "given"


def test_a_secret_that_others_can_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("DBA3C_SECRET", raising=False)
    run = finished_run(tmp_path / "run")
    (run.path / "secret").chmod(0o644)
    with pytest.raises(UserError, match="can be read by others"):
        run.secret()


def _request(path, reason, answers):
    answers.put(RunFolder.open(path).request_stop(reason))


def test_the_first_reason_to_stop_stays(tmp_path):
    run = finished_run(tmp_path / "run")
    assert run.stop_reason() is None
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_request, args=(run.path, f"reason {i}", answers)) for i in range(3)]
    for process in processes:
        process.start()
    won = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert sorted(won) == [False, False, True]
    assert run.stop_reason() in {"reason 0", "reason 1", "reason 2"}


def test_a_resumed_run_forgets_why_it_was_stopped_and_who_listened(tmp_path):
    run = finished_run(tmp_path / "run")
    run.request_stop("enough")
    run.publish("server-0", {"host": "a", "port": 1})
    with RunFolder.launch(run.path, None, resume=True) as again:
        assert again.stop_reason() is None and again.published("server-0") is None
        assert again.meta()["lives"][0]["stop_reason"] == "enough"


def test_a_chief_that_comes_back_leaves_the_addresses_of_those_who_went_on(tmp_path):
    found = []
    for number, launch_id in enumerate(["one", "one", "two"]):
        with RunFolder.launch(tmp_path / "run", None if number else "{}", number > 0, launch_id=launch_id) as run:
            found.append([path.stem for path in run.rendezvous.iterdir()])
            run.publish("learner-0", {"host": "n1", "port": 7, "incarnation": 0})
            run.note_left("server", 0)
    assert found == [[], ["learner-0"], []]


def test_lives_of_one_launch_count_as_one_for_who_outlives_its_chief(tmp_path):
    numbers = []
    for number, launch_id in enumerate(["", "", "one", "one", "one", "two"]):
        with RunFolder.launch(tmp_path / "run", None if number else "{}", number > 0, launch_id=launch_id) as run:
            numbers.append((run.life_number(), run.launch_number()))
    assert numbers == [(0, 0), (1, 1), (2, 2), (3, 2), (4, 2), (5, 5)]


def test_a_file_where_logs_should_be_is_refused_before_anything_is_changed(tmp_path):
    finished_run(tmp_path / "run")
    (tmp_path / "run" / "logs").rmdir()
    (tmp_path / "run" / "logs").write_text("a file")
    with pytest.raises(UserError, match="logs"):
        RunFolder.launch(tmp_path / "run", None, resume=True)
    assert RunFolder.open(tmp_path / "run").status() == "finished"


def test_lives_that_no_launch_has_written_are_named(tmp_path):
    run = finished_run(tmp_path / "run")
    (run.path / "meta.json").write_text('{"lives": [{"ended": "today"}]}')
    with pytest.raises(UserError, match="meta.json: how a life ended should be an object"):
        run.life()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*run: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG)


def test_a_disk_that_is_full_at_launch_is_one_clear_line(tmp_path, monkeypatch):
    full = refusing(errno.ENOSPC)

    monkeypatch.setattr(run_lock.os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*lock.json: No space left on device"):
        RunFolder.create(tmp_path / "run", CONFIG)


def test_a_rank_of_a_run_that_torchrun_starts_again_opens_no_life_of_before_it_was_started(tmp_path):
    began_s = time.time()
    first = RunFolder.create(tmp_path / "run", {}, launch_id="j-1", topology={"run_name": "j"})

    def opens(since_s: float) -> bool:
        with contextlib.suppress(UserError):
            return bool(RunFolder.open(tmp_path / "run", run_name="j", since_s=since_s))
        return False

    assert opens(began_s) and opens(began_s + 5)  # its clock may be another host's
    assert not opens(began_s + 60)
    first.end_life("stopped", "SIGTERM at server 0")
    first.release()
    assert opens(began_s) and not opens(time.time() + 0.001)


def test_a_chief_that_comes_back_forgets_addresses_that_only_its_dead_processes_could_reach(tmp_path):
    with RunFolder.create(tmp_path / "run", {}, launch_id="j") as first:
        for name, address in {
            "server-0": {"host": "127.0.0.1", "port": 1, "only_in": "before this machine was booted"},
            "server-1": {"host": "10.0.0.1", "port": 1},
        }.items():
            first.publish(name, address)
    with RunFolder.launch(tmp_path / "run", None, resume=True, launch_id="j") as second:
        assert second.published("server-0") is None
        assert second.published("server-1") is not None
