"""Who holds a run's folder, and when another launch may take it over; the lock's own beats are in `test_lock`."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from dba3c.errors import UserError
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs import lock as run_lock
from dba3c.runs.folder import RunFolder
from tests.dba3c.runs.finished_run import CONFIG, finished_run
from tests.refusals import refusing


def abandon_in_a_dead_process(path):
    """A child that creates the run and dies without releasing it, as by kill -9."""
    create = f"from dba3c.runs.folder import RunFolder; r = RunFolder.create({str(path)!r}, {{}})"
    code = f"import os; {create}; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 9


def pretend_held_elsewhere(path, age_s):
    holder = {"host": "node17", "pid": 42, "process_started": "1", "pid_space": "another boot", "token": "abc"}
    (path / "lock.json").write_text(json.dumps(holder))
    when_s = (path / "lock.json").stat().st_mtime - age_s
    os.utime(path / "lock.json", (when_s, when_s))


def test_a_second_launch_into_a_live_folder_is_refused_naming_host_and_pid(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        for resume in (False, True):
            with pytest.raises(UserError, match=f"in use by process {os.getpid()} on {run.lock.holder.host}"):
                RunFolder.launch(tmp_path / "run", CONFIG, resume=resume)


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    abandon_in_a_dead_process(tmp_path / "run")
    assert (tmp_path / "run" / "lock.json").exists()
    assert RunFolder.open(tmp_path / "run").status() == "broken"
    with pytest.raises(UserError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", CONFIG)
    with RunFolder.launch(tmp_path / "run", None, resume=True) as run:
        assert run.status() == "live"


def test_a_pid_given_to_a_later_process_is_not_the_holder(tmp_path):
    run = finished_run(tmp_path / "run")
    holder = run_lock.Holder.this_process()
    forged = {**vars(holder), "process_started": "0"}
    (run.path / "lock.json").write_text(json.dumps(forged))
    assert run_lock.living_holder(run.path) is None


def test_another_user_s_process_that_cannot_be_looked_at_counts_while_its_heartbeat_is_fresh(tmp_path, monkeypatch):
    run = finished_run(tmp_path / "run")
    (run.path / "lock.json").write_text(json.dumps(vars(run_lock.Holder.this_process())))

    def refuse(pid, signum):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(run_lock, "process_started", lambda pid: "")  # /proc is mounted with hidepid
    assert run_lock.living_holder(run.path) is not None
    long_ago_s = time.time() - run_lock.HEARTBEAT_LOST_S - 5
    os.utime(run.path / "lock.json", (long_ago_s, long_ago_s))
    assert run_lock.living_holder(run.path) is None


def test_giving_back_a_folder_that_has_become_read_only_does_not_fail(tmp_path, monkeypatch):
    run = RunFolder.create(tmp_path / "run", CONFIG)

    refuse = refusing(errno.EROFS)

    monkeypatch.setattr(os, "unlink", refuse)
    run.release()


def test_a_lock_of_another_host_counts_while_its_heartbeat_is_fresh(tmp_path, monkeypatch):
    run = finished_run(tmp_path / "run")
    pretend_held_elsewhere(run.path, age_s=5)
    with pytest.raises(UserError, match="in use by process 42 on node17"):
        RunFolder.launch(run.path, None, resume=True)
    pretend_held_elsewhere(run.path, age_s=run_lock.HEARTBEAT_LOST_S + 5)
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.01)  # two of them are left to whoever may live after all
    RunFolder.launch(run.path, None, resume=True).release()


def test_a_lock_that_only_seems_old_is_not_taken_over(tmp_path, monkeypatch):
    """Of a holder whose clock is behind, where the file system has the times of its clients."""
    run = finished_run(tmp_path / "run")
    pretend_held_elsewhere(run.path, age_s=600)

    def beat(_):
        os.utime(run.path / "lock.json", (1.0, 1.0))

    monkeypatch.setattr(run_lock, "time", SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=beat))
    with pytest.raises(UserError, match="in use by process 42 on node17"):
        RunFolder.launch(run.path, None, resume=True)
    assert "node17" in (run.path / "lock.json").read_text()


def test_what_the_file_system_s_clock_is_ahead_by_is_not_forgotten_when_its_disk_is_full(tmp_path, monkeypatch):
    full = refusing(errno.ENOSPC)

    run = finished_run(tmp_path / "run")
    pretend_held_elsewhere(run.path, age_s=5)
    clock = SimpleNamespace(time=lambda: time.time() + 600.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(run_lock, "time", clock)
    for clock.now_s in (0.0, 1000.0, 1001.0):
        assert run_lock.living_holder(run.path) is not None
        monkeypatch.setattr(run_lock.Path, "touch", full)


def test_a_torn_lock_counts_while_its_heartbeat_is_fresh(tmp_path):
    run = finished_run(tmp_path / "run")
    (run.path / "lock.json").write_text('{"host": "no')
    with pytest.raises(UserError, match="an unknown host"):
        RunFolder.launch(run.path, None, resume=True)


def test_a_holder_that_was_taken_over_names_the_successor_and_writes_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.01)
    run = RunFolder.create(tmp_path / "run", CONFIG, launch_id="one")
    worker = RunFolder.open(run.path, launch_id="one")  # another process of the same launch
    writer, told = MetricsWriter(worker, "worker", 0), []
    run.lock.when_lost(told.append)
    pretend_held_elsewhere(run.path, age_s=0)
    for lock in (run.lock, worker.lock):
        lock._thread.join(timeout=10)
        assert lock.lost_to.host == "node17"
    assert told == [run.lock.lost_to]
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for write in (
        lambda: run.end_life("finished", ""),
        lambda: worker.publish("x", {}),
        lambda: worker.request_stop(""),
    ):
        with pytest.raises(UserError, match="was taken over by process 42 on node17: .* writes nothing more"):
            write()
    writer.record_event("joined", "worker 0")
    writer.close()
    run.release()
    worker.release()
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_chief_that_is_started_again_is_the_same_launch_to_its_ranks_and_a_successor_to_the_one_before(tmp_path):
    run = RunFolder.create(tmp_path / "run", CONFIG, launch_id="one")
    worker = RunFolder.open(run.path, launch_id="one")
    holder = json.loads((run.path / "lock.json").read_text())
    again = {**holder, "pid": 4_000_000, "token": "of its second life"}
    (run.path / "lock.json").write_text(json.dumps(again))
    assert worker.lock.look() is None
    worker.publish("x", {})
    assert run.lock.look().pid == 4_000_000
    (run.path / "lock.json").write_text(json.dumps({**again, "token": "of another launch", "launch_id": "two"}))
    assert worker.lock.look().launch_id == "two"
    run.release()
    worker.release()


def test_what_asks_before_the_next_beat_is_not_written_either(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as run:
        pretend_held_elsewhere(run.path, age_s=0)
        with pytest.raises(UserError, match="node17"):
            run.request_stop("SIGTERM")
        assert run.stop_reason() is None


def test_a_launch_whose_successor_has_already_left_has_lost_the_folder_too(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as first:
        first.path.joinpath("lock.json").unlink()  # as one that was frozen for long finds it: taken, used, given back
        RunFolder.launch(first.path, None, resume=True).release()
        assert first.lock.look() is not None
        with pytest.raises(UserError, match="was taken over"):
            first.end_life("finished", "")
    assert not (first.path / "lock.json").exists()


def test_of_many_launches_at_once_exactly_one_gets_the_folder(tmp_path):
    abandon_in_a_dead_process(tmp_path / "run")
    barrier, won, refused = threading.Barrier(8), [], []

    def launch():
        barrier.wait(timeout=30)
        try:
            won.append(RunFolder.launch(tmp_path / "run", None, resume=True))
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=launch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(won) == 1 and len(refused) == 7
    won[0].release()
