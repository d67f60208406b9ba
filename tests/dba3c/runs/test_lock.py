"""Who holds a run folder, as its heartbeat tells (more in `test_taking_over`)."""

import errno
import json
import os
import shutil
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dba3c.errors import UserError
from dba3c.runs import ending, lock
from dba3c.runs.ending import RunEnd
from dba3c.runs.files import write_atomically
from dba3c.runs.folder import RunFolder
from dba3c.runs.lock import HEARTBEAT_S, LOCK_NAME, RunLock, living_holder
from param_servers.errors import RunBroken
from tests.waiting import wait_until


def test_a_copy_of_a_live_run_is_not_live_for_as_long_as_that_one_is(tmp_path):
    with RunFolder.create(tmp_path / "run", {}) as run:
        copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
        assert living_holder(copy.path) is not None  # some file systems number a folder anew
        for folder in (run, copy):
            os.utime(folder.path / LOCK_NAME, (1.0, 1.0))
        assert (run.status(), copy.status()) == ("live", "broken")
        with RunFolder.launch(copy.path, None, resume=True):
            assert (run.status(), copy.status()) == ("live", "live")


def test_a_launch_whose_clock_is_behind_is_not_gone_to_its_evaluators_while_it_beats(tmp_path, monkeypatch):
    """Where the file system has the times of its clients (Lustre, GPFS)."""
    run = RunFolder.create(tmp_path / "run", {})
    run.release()
    elsewhere = {**vars(run.lock.holder), "host": "node17", "pid_space": "another boot"}
    (run.path / LOCK_NAME).write_text(json.dumps(elsewhere))
    now_s = 1e6
    clock = SimpleNamespace(time=time.time, monotonic=lambda: now_s)
    monkeypatch.setattr(ending, "time", clock)
    monkeypatch.setattr(lock, "time", clock)
    run_end = RunEnd(run)
    for beat in range(40):
        os.utime(run.path / LOCK_NAME, (beat, beat))
        now_s += HEARTBEAT_S
        assert run_end() is None
    now_s += 70.0
    assert run_end() is None
    now_s += 70.0
    with pytest.raises(RunBroken, match="is gone: nobody has held its lock"):
        run_end()


def test_of_two_launches_that_no_guard_keeps_apart_the_one_that_was_overwritten_is_refused(tmp_path, monkeypatch):
    """Two hosts, on a file system without flock."""

    def both(path, text):
        write_atomically(path, text)
        write_atomically(path, json.dumps({**json.loads(text), "host": "node17", "token": "the other's"}))

    monkeypatch.setattr(lock, "_takeover_guard", lambda folder: nullcontext())
    monkeypatch.setattr(lock, "write_atomically", both)
    with pytest.raises(UserError, match="was taken by another launch at the same moment"):
        RunLock.acquire(tmp_path)
    assert json.loads((tmp_path / LOCK_NAME).read_text())["host"] == "node17"


def test_a_run_that_somebody_deletes_is_lost_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", 0.05)
    run, told = RunFolder.create(tmp_path / "run", {}), []
    run.lock.when_lost(told.append)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)  # as whoever writes the next one makes it
    run.lock._thread.join(timeout=10)
    assert told == [lock.NOBODY]
    with pytest.raises(UserError, match="was deleted: this launch has ended, and what it had learned is lost"):
        run.request_stop("SIGTERM")
    run.release()


def test_a_process_that_follows_a_launch_misses_a_deleted_run_by_itself(tmp_path, monkeypatch):
    """As a role does whose launch is a Python program, which goes on."""
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", 0.05)
    run, told = RunFolder.create(tmp_path / "run", {}), []
    followed = RunLock(run.path, run.lock.holder, keeps=False)
    followed.when_lost(told.append)
    wait_until(lambda: followed._device is not None, "a look at the folder")
    run.release()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    followed._thread.join(timeout=10)
    assert told == [lock.NOBODY]


def test_a_run_that_is_deleted_before_its_first_heartbeat_is_lost_too(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", -1.0)
    with RunFolder.create(tmp_path / "run", {}) as run:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        run.lock.look_whether_deleted()
        assert run.lock.lost_to is lock.NOBODY


def test_a_lock_where_there_was_never_a_run_is_not_lost_with_one(tmp_path, monkeypatch):
    """As a Slurm job's script holds one, in a folder beside the run's."""
    monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", 0.0)
    held = RunLock.acquire(tmp_path)
    for _ in range(3):
        held.look_whether_deleted()
    assert held.lost_to is None
    held.release()


def test_a_run_whose_file_system_is_away_is_not_taken_for_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", 0.0)
    with RunFolder.create(tmp_path / "mount" / "run", {}) as run:
        run.lock.look_whether_deleted()
        (tmp_path / "mount").rename(tmp_path / "away")
        for _ in range(3):
            run.lock.look_whether_deleted()
        assert run.lock.lost_to is None
        (tmp_path / "away").rename(tmp_path / "mount")


def test_a_run_folder_that_has_lost_its_mount_is_not_taken_for_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", 0.0)
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.lock.look_whether_deleted()
        run.lock._device += 1  # as if it had been another's
        (tmp_path / "run" / "config.json").rename(tmp_path / "config.json")
        for _ in range(3):
            run.lock.look_whether_deleted()
        assert run.lock.lost_to is None


def test_a_lock_file_that_somebody_deleted_is_put_back(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    with RunFolder.create(tmp_path / "run", {}) as run:
        (run.path / "lock.json").unlink()
        wait_until((run.path / "lock.json").exists, "the lock to be put back")
        assert run.lock.look() is None
        with pytest.raises(UserError, match="in use by process"):
            RunFolder.launch(run.path, None, resume=True)


def test_refreshes_that_fail_for_a_while_let_nobody_in_and_do_not_end_the_holder(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.01)
    beats, failed = threading.Semaphore(0), OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    real_read = lock.Path.read_text

    def stale(path, *_, **__):
        if path.name not in ("lock.json", "meta.json"):
            return real_read(path)
        beats.release()
        raise failed

    def refuse(*_):
        raise failed

    with RunFolder.create(tmp_path / "run", {}) as run:
        with monkeypatch.context() as away:
            away.setattr(lock.os, "utime", refuse)
            away.setattr(lock.Path, "read_text", stale)
            for _ in range(5):
                assert beats.acquire(timeout=10)
        with monkeypatch.context() as elsewhere:  # as another host sees it, by its heartbeat alone
            elsewhere.setattr(lock.host_facts, "namespace", lambda kind: "another boot")
            with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
                RunFolder.launch(run.path, None, resume=True)
        assert run.lock.look() is None
        run.end_life("finished", "and it could still write")
