"""When a job's first node is lost, as another rank of the job sees it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dba3c.errors import UserError
from dba3c.runs import lock as run_lock
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from dba3c.runs.lock import LOCK_NAME
from launch.slurm import controller
from tests.launch.slurm.conftest import Fake, asked
from tests.refusals import refusing

JOB = {"SLURM_JOB_ID": "7"}


refuse = refusing(errno.EROFS)


class Watched:
    """A first node, and the clock of the rank that looks at it."""

    def __init__(self, run_dir: Path) -> None:
        self.now_s = 0.0
        self._first_node = controller.FirstNode(run_dir, JOB, clock=lambda: self.now_s)

    def is_lost(self, after_s: float, looks: int = 100) -> bool:
        """Whether it is for the last of so many looks, evenly in that time."""
        found = False
        for _ in range(looks):
            self.now_s += after_s / looks
            found = self._first_node.is_lost()
        return found

    def turns_out_lost(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Whether it does, while a rank that has failed looks every two seconds."""

        def sleep(seconds: float) -> None:
            self.now_s += seconds
            meanwhile()

        with monkeypatch.context() as patched:
            patched.setattr(controller, "time", SimpleNamespace(sleep=sleep))
            return self._first_node.turns_out_lost()


def test_only_the_death_of_both_script_and_chief_is_the_loss_of_the_first_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 1000.0)
    run_dir = tmp_path / "run"
    chief = RunFolder.create(run_dir, {})
    first_node = Watched(run_dir)
    assert not first_node.is_lost(after_s=200.0)  # no script of ours
    script = controller.hold(run_dir)
    controller.note_job(run_dir, JOB)
    assert not first_node.is_lost(after_s=200.0)
    die(run_dir / controller.FOLDER)
    assert not first_node.is_lost(after_s=200.0)  # srun's own affair: the chief lives
    die(run_dir)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", refuse)
        assert not first_node.is_lost(after_s=200.0)  # no heartbeat could come
    assert first_node.is_lost(after_s=200.0)
    chief.end_life("finished", "enough")
    assert not first_node.is_lost(after_s=200.0)
    chief.release()
    script.release()


def test_the_lock_that_an_earlier_job_s_killed_script_has_left_says_nothing_of_this_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 1000.0)
    run_dir = tmp_path / "run"
    RunFolder.create(run_dir, {}).release()
    script = controller.hold(run_dir)
    controller.note_job(run_dir, {"SLURM_JOB_ID": "6"})
    die(run_dir / controller.FOLDER)
    first_node = Watched(run_dir)
    assert not first_node.is_lost(after_s=200.0)
    controller.note_job(run_dir, JOB)
    assert first_node.is_lost(after_s=200.0)
    script.release()


def test_an_outage_of_the_file_system_begins_the_wait_for_the_first_node_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 1000.0)
    run_dir = tmp_path / "run"
    chief = RunFolder.create(run_dir, {})
    script = controller.hold(run_dir)
    controller.note_job(run_dir, JOB)
    first_node, a_bit_less_s = Watched(run_dir), 0.9 * run_lock.HEARTBEAT_LOST_S
    die(run_dir)
    die(run_dir / controller.FOLDER)
    assert not first_node.is_lost(a_bit_less_s)

    def away(folder: Path) -> object:
        raise OSError("Stale file handle")

    with monkeypatch.context() as outage:
        outage.setattr(controller, "heartbeat", away)
        assert not first_node.is_lost(a_bit_less_s)
    assert not first_node.is_lost(a_bit_less_s)
    assert first_node.is_lost(0.2 * run_lock.HEARTBEAT_LOST_S)
    chief.release()
    script.release()


def test_a_first_node_is_not_lost_to_a_rank_that_was_suspended_or_has_another_idea_of_the_time(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    RunFolder.create(run_dir, {}).release()
    (run_dir / controller.FOLDER).mkdir()
    controller.note_job(run_dir, JOB)
    first_node, folders = Watched(run_dir), (run_dir, run_dir / controller.FOLDER)

    def beat(at_s: float) -> None:
        holder = {"host": "n1", "pid": 42, "process_started": "1", "pid_space": "another boot", "token": "abc"}
        for folder in folders:
            (folder / LOCK_NAME).write_text(json.dumps(holder))
            os.utime(folder / LOCK_NAME, (at_s, at_s))

    for at_s in range(1, 50):  # by this rank's clock it has been dead for decades
        beat(at_s)
        assert not first_node.is_lost(after_s=5.0, looks=2)
    assert not first_node.is_lost(after_s=600.0, looks=1)  # suspended, or the look was blocked
    assert not first_node.is_lost(after_s=50.0)
    beat(60)
    assert not first_node.is_lost(after_s=50.0)
    assert first_node.is_lost(after_s=20.0)


def test_a_rank_that_fails_at_once_waits_until_it_knows_whether_its_first_node_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 1000.0)
    run_dir = tmp_path / "run"
    chief = RunFolder.create(run_dir, {})
    first_node = Watched(run_dir)
    assert not first_node.turns_out_lost(monkeypatch)
    assert first_node.now_s == 0.0  # no script: nobody is to be asked
    script = controller.hold(run_dir)
    controller.note_job(run_dir, JOB)
    script_s = iter(range(1, 100))

    def beat() -> None:
        os.utime(run_dir / controller.FOLDER / LOCK_NAME, (next(script_s),) * 2)

    assert not first_node.turns_out_lost(monkeypatch, beat)
    assert first_node.now_s == 2.0  # the script lives
    die(run_dir / controller.FOLDER)
    die(run_dir)
    assert first_node.turns_out_lost(monkeypatch)
    assert run_lock.HEARTBEAT_LOST_S <= first_node.now_s <= run_lock.HEARTBEAT_LOST_S + 6.0
    chief.release()
    script.release()


def test_the_first_node_s_loss_is_told_even_where_slurm_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "REQUEUE_PAUSE_S", 0.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = controller.requeue_without_first_node(claimed(tmp_path / "run", by_another=False), "7-0", JOB)
    assert "scontrol cannot be run" in said
    assert "cannot be ended" in said


def test_a_run_that_was_asked_to_stop_while_its_first_node_was_away_is_not_requeued(tmp_path: Path, fake: Fake) -> None:
    fake("scontrol", "exit 0")
    fake("scancel", "exit 0")
    run_dir = tmp_path / "run"
    with RunFolder.create(run_dir, {}, launch_id="7-0") as folder:
        folder.request_stop(STOP_COMMAND)
    said = controller.requeue_without_first_node(run_dir, "7-0", JOB)
    assert "is not requeued (dba3c stop has asked it to end): ended" in said
    assert asked(tmp_path) == ["scancel 7"]


def claimed(run_dir: Path, by_another: bool = True) -> Path:
    (run_dir / controller.FOLDER).mkdir(parents=True)
    if by_another:
        (run_dir / controller.FOLDER / "requeued-7-0").touch()
    return run_dir


def test_a_full_disk_does_not_keep_the_ranks_from_a_requeue_and_the_second_to_ask_does_not_end_the_job(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, text: str) -> bool:
        raise UserError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(controller, "write_once", refuse)
    pending = 'echo "Job is pending execution for job 7" >&2; exit 1'
    fake("scontrol", f'[ "$(wc -l < {tmp_path}/asked)" = 1 ] || {{ {pending}; }}')
    said = {controller.requeue_without_first_node(tmp_path, "7-0", JOB) for _ in range(2)}
    assert said == {"the first node is lost, and with it the run's chief: job 7 is requeued"}
    assert asked(tmp_path) == ["scontrol requeue 7"] * 2


def test_where_the_rank_that_asks_first_reaches_no_controller_another_one_asks(tmp_path: Path, fake: Fake) -> None:
    run_dir = claimed(tmp_path / "run", by_another=False)
    away = "echo 'Unable to contact slurm controller' >&2; exit 1"
    fake("scontrol", away)
    fake("scancel", away)
    assert "cannot be ended" in controller.requeue_without_first_node(run_dir, "7-0", JOB)
    fake("scontrol", "exit 0")
    assert controller.requeue_without_first_node(run_dir, "7-0", JOB).endswith("job 7 is requeued")
    tries = controller.REQUEUE_TRIES
    assert asked(tmp_path) == ["scontrol requeue 7"] * tries + ["scancel 7"] * tries + ["scontrol requeue 7"]


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_rank_asks_when_the_one_before_it_has_given_up_or_is_not_heard_of_any_more(
    gives_up: bool, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("scontrol", "exit 0")
    run_dir = claimed(tmp_path / "run")
    waited_s: list[float] = []

    def sleep(seconds: float) -> None:
        assert asked(tmp_path) == []
        waited_s.append(seconds)
        if gives_up and len(waited_s) == 3:
            (run_dir / controller.FOLDER / "requeued-7-0").unlink()

    monkeypatch.setattr(controller, "REQUEUE_PAUSE_S", 5.0)
    monkeypatch.setattr(controller, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(waited_s)))
    assert controller.requeue_without_first_node(run_dir, "7-0", JOB).endswith("job 7 is requeued")
    assert sum(waited_s) == (15.0 if gives_up else controller.CLAIM_S)
    assert asked(tmp_path) == ["scontrol requeue 7"]


def die(folder: Path) -> None:
    """As if the lock's holder were a process that is no more."""
    holder = json.loads((folder / LOCK_NAME).read_text())
    (folder / LOCK_NAME).write_text(json.dumps({**holder, "process_started": "-1"}))
