"""What a run on one machine and a rank of a launch have in common."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from dba3c.roles import PER_START
from dba3c.runs import lock
from dba3c.runs.ending import RunEnd
from dba3c.runs.files import write_atomically
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from launch import rank as launch_rank
from launch import running
from launch.cli.options import parse_train
from launch.cli.runs import resume, run_dir_of, train_as_rank
from launch.cluster.launchers import LaunchPlace
from launch.running import first_incarnation, role_processes, starts_before


def test_two_launches_of_one_second_have_a_folder_each() -> None:
    config = parse_train(["breakout"]).config(2)
    assert run_dir_of(config, goes_on=False) != run_dir_of(config, goes_on=False)


def test_a_monitor_has_the_time_to_wait_for_the_windows_of_all_lanes(tmp_path: Path) -> None:
    many = replace_options(TrainConfig(), exchange="allreduce", num_workers=64, lanes=16, envs_per_worker=16)
    with RunFolder.create(tmp_path / "run", many.to_json()) as folder:
        (monitor,) = (part for part in role_processes(many, folder.path, "") if part.role == "monitor")
        over = RunEnd(folder, look_s=0.0)
        folder.request_stop("enough")
        assert over.nothing_more_comes(silent_s=monitor.drain_timeout_s - 10.0)


def test_a_rank_that_is_started_again_takes_incarnations_of_its_own(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        assert [first_incarnation(folder, 3) for _ in range(3)] == [0, PER_START, 2 * PER_START]
        assert first_incarnation(folder, 4) == 0
        folder.end_life("stopped", "enough")
    with RunFolder.launch(tmp_path / "run", None, resume=True) as folder:
        assert [first_incarnation(folder, rank) for rank in (3, 4, 5)] == [3 * PER_START, PER_START, PER_START]


def test_no_worker_s_incarnation_comes_again_in_a_life_that_deals_its_ranks_anew(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        assert [first_incarnation(folder, 3) for _ in range(2)] == [0, PER_START]  # worker 1, beside two servers
        folder.end_life("stopped", "enough")
    starts = starts_before(tmp_path / "run")
    with RunFolder.launch(tmp_path / "run", None, resume=True, starts=starts) as folder:
        assert first_incarnation(folder, 2) == 2 * PER_START  # worker 1, beside one
        assert first_incarnation(folder, 3) == 2 * PER_START


def test_a_count_of_starts_that_a_crash_has_torn_begins_at_the_lives(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        for torn in ("", "[]", '{"starts": null}'):
            (folder.path / "logs" / "rank-0.json").write_text(torn)
            assert first_incarnation(folder, 0) == 0
        folder.end_life("stopped", "enough")
    with RunFolder.launch(tmp_path / "run", None, resume=True) as folder:
        (folder.path / "logs" / "rank-0.json").write_text("")
        assert first_incarnation(folder, 0) == PER_START


def chief_of(launch_id: str) -> LaunchPlace:
    return LaunchPlace(launcher="an indexed Kubernetes Job", world_size=3, launch_id=launch_id)


def test_a_chief_whose_pod_is_restarted_goes_on_with_its_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert not running.returns(run_dir, chief_of("uid-1"))
    folder = RunFolder.create(run_dir, {}, launch_id="uid-1")
    folder.release()
    assert running.returns(run_dir, chief_of("uid-1"))
    assert not running.returns(run_dir, chief_of("uid-2"))  # another Job into the same folder must say --resume
    folder.end_life("finished", "score reached")
    assert not running.returns(run_dir, chief_of("uid-1"))


def ranks_of_torchrun(name: str, restart_count: int = 0) -> LaunchPlace:
    return LaunchPlace(launcher="torchrun", world_size=3, launch_id=name, run_name=name, restart_count=restart_count)


@pytest.mark.parametrize(
    ("outcome", "reason", "goes_on"),
    [
        (None, "", True),  # it was killed before it could end
        ("failed", "worker 0 failed", True),
        ("stopped", "SIGTERM", True),  # torchrun's own, when it ends the ranks that are left
        ("stopped", "SIGTERM at worker 0", True),
        ("stopped", "SIGINT", False),
        ("stopped", STOP_COMMAND, False),
        ("finished", "score reached", False),
    ],
)
def test_what_torchrun_starts_again_goes_on_with_its_run_and_not_with_one_that_ended_well_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str | None, reason: str, goes_on: bool
) -> None:
    """It counts no restart where a node joins, or another torchrun's rank had failed, and may choose another port then:
    the run is known by the torchrun that started it."""

    def which_go_on() -> list[bool]:
        places = (ranks_of_torchrun("h-29500", restart_count=1), ranks_of_torchrun("h-29500"), ranks_of_torchrun("h-1"))
        return [running.returns(tmp_path / "run", place) for place in places]

    assert not any(which_go_on())  # the first life did not come as far
    with RunFolder.create(tmp_path / "run", {}, launch_id="h-29500", topology={"run_name": "h-29500"}) as run:
        if outcome:
            run.end_life(outcome, reason)
    assert which_go_on() == [goes_on] * 3
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(running, "started_by", lambda: "another torchrun")
        assert which_go_on() == [goes_on, goes_on and outcome is None, False]
        assert not running.returns(run.path, ranks_of_torchrun("h-1", restart_count=1))
    run.request_stop(STOP_COMMAND)
    assert not any(which_go_on())  # whatever failed while it was ending


@pytest.mark.parametrize(
    ("words", "processes"),
    [("breakout --workers 60 --lanes 12 --servers 4", 720), ("impala --actors 512", 513)],
)
def test_a_run_of_a_cluster_does_not_go_on_with_all_its_processes_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, processes: int
) -> None:
    monkeypatch.setattr(running, "given_cores", lambda environ: 64)
    monkeypatch.setattr(running, "train", crash)  # or hundreds of processes would be started here
    config = parse_train(words.split()).config(2)
    with RunFolder.launch(tmp_path / "run", config.to_json(), False, launcher="srun") as folder:
        pass
    with pytest.raises(UserError, match=f"started by srun, with {processes} processes in all, .* --resume --run-dir"):
        resume([str(folder.path)])


@pytest.mark.parametrize(
    ("words", "missed"),
    [
        ("CartPole-v1 --max-core-hours 3", "so nobody looks for --stop-score and --max-core-hours any more"),
        ("CartPole-v1 --max-core-hours 3 --evaluators 1", "so nobody looks for --max-core-hours any more"),
        ("tests.integration.games:make_corridor", ""),
    ],
)
def test_what_a_lost_monitor_no_longer_looks_for_is_known(tmp_path: Path, words: str, missed: str) -> None:
    processes = running.role_processes(parse_train(words.split()).config(2), tmp_path, "1", 0)
    (monitor,) = [process for process in processes if process.role == "monitor"]
    assert monitor.missed.startswith(missed) and bool(monitor.missed) == bool(missed)


@pytest.mark.parametrize("of_a_cluster", [False, True])
def test_a_signal_while_a_run_that_has_ended_is_shown_a_last_time_does_not_lose_its_end(
    of_a_cluster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        cause = ""

        def __init__(self, *_: object, **__: object) -> None:
            self.take_signal = list[int]().append

        def run(self) -> int:
            return 0

    @contextmanager
    def last_look(*_: object, **__: object) -> Iterator[None]:
        yield
        os.kill(os.getpid(), signal.SIGTERM)

    for module in (running, launch_rank):
        monkeypatch.setattr(module, "ForkServer", lambda **_: nullcontext())
        monkeypatch.setattr(module, "Supervisor", Ended)
        monkeypatch.setattr(module, "watched", last_look)
    monkeypatch.setattr(running, "check_machine", lambda *_: None)
    monkeypatch.setattr(running, "refuse_unbuildable", lambda *_: None)
    run_dir = tmp_path / "run"
    before = signal.signal(signal.SIGTERM, crash)
    try:
        if of_a_cluster:
            said = parse_train(["CartPole-v1", "--servers", "1", "--run-dir", str(run_dir)])
            place = LaunchPlace(launcher="mpirun", world_size=2, tasks_per_node=(2,), launch_id="1")
            assert train_as_rank(said, place, "dba3c") == 0
        else:
            config = parse_train(["CartPole-v1"]).config(1)
            assert running.train(config, run_dir, resume=False, command="dba3c")[0] == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert RunFolder(run_dir).life()["ended"]["outcome"] == "finished"


def crash(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of this test")


def test_a_life_that_cannot_count_its_starts_has_an_end_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "ForkServer", lambda **_: nullcontext())
    monkeypatch.setattr(running, "check_machine", lambda *_: None)
    monkeypatch.setattr(running, "refuse_unbuildable", lambda *_: None)
    config = parse_train(["CartPole-v1"]).config(1)
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder:
        folder.end_life("finished", "score reached")
    (folder.path / "logs" / "rank-0.json").mkdir()
    with pytest.raises(IsADirectoryError):
        running.train(config, folder.path, resume=True, command="dba3c")
    assert folder.life()["ended"]["outcome"] == "finished"  # no life had begun
    monkeypatch.setattr(running, "starts_before", lambda _: 1)  # the disk's fault comes later
    with pytest.raises(IsADirectoryError):
        running.train(config, folder.path, resume=True, command="dba3c")
    assert folder.status() == "finished"  # not "broken", as of a life without an end
    assert folder.life()["ended"]["outcome"] == "failed"
    assert "rank-0.json" in folder.life()["ended"]["reason"]


def test_a_machine_without_room_for_temporary_files_is_one_line_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(UserError, match=r"No usable temporary directory found in .*: set TMPDIR to a folder with room"):
        running._temporary_folder()


def test_a_chief_waits_for_the_lock_that_its_killed_container_has_left_and_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "HEARTBEAT_S", 0.02)
    run_dir = tmp_path / "run"
    RunFolder.create(run_dir, {}, launch_id="uid-1").release()
    left = lock.Holder.this_process("uid-1")
    for holder, waits in (
        (replace(left, pid_space="another container's"), True),
        (replace(left, pid_space="another container's", launch_id="uid-2"), False),
        (left, False),
    ):
        monkeypatch.setattr(lock, "HEARTBEAT_LOST_S", 5.0 if waits else 600.0)
        write_atomically(run_dir / lock.LOCK_NAME, json.dumps(asdict(holder)))
        os.utime(run_dir / lock.LOCK_NAME)
        running.wait_for_its_dead_lock(run_dir)
        assert (lock.living_holder(run_dir) is None) is waits
        assert ("was held by this launch" in capsys.readouterr().err) is waits


def test_who_was_asked_to_stop_while_its_chief_was_away_ends_when_that_comes_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for reason, stays in (("SIGTERM at server 0", False), (STOP_COMMAND, True)):
        with RunFolder.launch(run_dir, "{}", resume=run_dir.exists(), launch_id="uid-1") as run:
            run.request_stop(reason)
        with RunFolder.launch(run_dir, None, resume=True, launch_id="uid-1") as again:
            assert (again.stop_reason() == STOP_COMMAND) is stays
            assert again.has_failed() is stays  # what was learned since the checkpoint is lost
    with RunFolder.launch(run_dir, None, resume=True, launch_id="uid-2") as another:
        assert another.stop_reason() is None
