"""Who holds a run folder, as its heartbeat tells (more in `test_folder`)."""

import json
import os
import shutil
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
