"""A job's script around its srun, with fake Slurm programs: a slow or absent controller must not end a healthy run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dba3c.errors import UserError
from dba3c.runs.folder import RunFolder
from launch.cli.main import main
from launch.cli.runs import stop
from launch.slurm import controller
from launch.slurm import job as slurm_job
from launch.slurm.job import LostNodes, SlurmJob, give_back_nodes
from tests.launch.slurm.conftest import Fake, asked

TASK = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
"""The task of an array that started last: its number is the array's."""

TRAINING = """
import os, signal, sys, time
from pathlib import Path
from dba3c.runs.folder import RunFolder
run_dir, asked = Path(sys.argv[1]), Path(sys.argv[2])
folder = RunFolder.create(run_dir, {}, launch_id="7-0")
deadline = time.monotonic() + 60
while not (run_dir / "stop.json").exists() and time.monotonic() < deadline:
    if asked.exists():
        asked.unlink()
        os.kill(os.getppid(), signal.SIGUSR1)
    time.sleep(0.02)
folder.end_life("stopped", folder.stop_reason() or "nobody asked")
folder.release()
"""
"""A run that goes on until it is stopped; when squeue has been asked, Slurm's warning comes, while squeue blocks."""


@pytest.mark.parametrize("squeue", ["sleep 60", None])
def test_a_slow_or_absent_squeue_does_not_end_a_run_and_the_warning_is_heard_while_it_blocks(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], squeue: str | None
) -> None:
    monkeypatch.setattr(controller, "LOOK_TIMEOUT_S", 0.5)
    warning = tmp_path / "warning"
    if squeue is None:
        warning.touch()
    else:
        fake("squeue", f"touch {warning}; exec {squeue}")
    fake("scontrol", "exit 0")
    environ = {**TASK, "SLURM_JOB_NODELIST": "n[1-2]"}
    run_dir = tmp_path / "run"
    lost_nodes = LostNodes(environ, run_dir, ["dba3c"])
    lost_nodes.nodes = ["n1", "n2"]  # the fake scontrol has no list
    job = SlurmJob(run_dir, [sys.executable, "-c", TRAINING, str(run_dir), str(warning)], environ, lost_nodes)
    assert job.run() == 0
    said = capfd.readouterr().out
    assert (run_dir / controller.FOLDER / controller.JOB).read_text() == "7_2\n"
    assert "SIGUSR1: asking the run to end with a checkpoint" in said
    assert "requeueing job 7_2" in said
    assert "is lost" not in said
    assert RunFolder(run_dir).life()["ended"]["reason"] == "SIGUSR1 at the Slurm job"
    assert asked(tmp_path)[-1] == "scontrol requeue 7_2"


def test_a_disk_that_is_full_when_the_warning_comes_is_asked_again_and_the_job_goes_on(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake("scontrol", "exit 0")
    refused = iter([UserError("cannot write stop.json: No space left on device")])
    request_stop = RunFolder.request_stop

    def ask(folder: RunFolder, reason: str) -> bool:
        for error in refused:
            raise error
        return request_stop(folder, reason)

    monkeypatch.setattr(RunFolder, "request_stop", ask)
    run_dir, warning = tmp_path / "run", tmp_path / "warning"
    warning.touch()
    command = [sys.executable, "-c", TRAINING, str(run_dir), str(warning)]
    assert SlurmJob(run_dir, command, TASK, LostNodes({}, run_dir, ["dba3c"])).run() == 0
    assert "No space left on device; asking again" in capfd.readouterr().out
    assert asked(tmp_path) == ["scontrol requeue 7_2"]


def test_a_full_disk_behind_the_job_s_output_costs_lines_and_not_the_next_life(tmp_path: Path, fake: Fake) -> None:
    fake("scontrol", "exit 0")
    run_dir, warning, training = tmp_path / "run", tmp_path / "warning", tmp_path / "training.py"
    warning.touch()
    training.write_text(TRAINING)
    fake("srun", f"exec {sys.executable} {training} {run_dir} {warning}")
    words = [sys.executable, "-m", "launch", "job", "--run-dir", str(run_dir), "--", "dba3c", "train"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            words, env=os.environ | TASK, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert RunFolder(run_dir).life()["ended"]["reason"] == "SIGUSR1 at the Slurm job"
    assert asked(tmp_path)[-1] == "scontrol requeue 7_2"


@pytest.mark.parametrize(
    ("shown", "requeued"),
    [
        ("JobState=COMPLETING Reason=TimeLimit PreemptTime=None ", 1),
        ("JobState=COMPLETING Reason=None PreemptTime=2026-11-27T01:13:45 ", 1),
        ("", 1),
        ("JobState=COMPLETING Reason=None PreemptTime=None ", 0),
        ("JobState=RUNNING Reason=None PreemptTime=None ", 0),
    ],
    ids=["limit", "preemption", "no answer", "scancel", "scancel --batch"],
)
def test_the_end_at_the_limit_does_not_take_the_warning_before_it_back_and_a_cancel_does(
    tmp_path: Path, fake: Fake, shown: str, requeued: int
) -> None:
    fake("scontrol", f"echo JobId=7 '{shown}'")
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", TRAINING, str(run_dir), str(tmp_path / "warning")]
    heard = [signal.SIGUSR1, signal.SIGTERM]
    job = SlurmJob(run_dir, command, TASK, LostNodes({}, run_dir, ["dba3c"]), heard=heard)
    assert job.run() == 0
    assert RunFolder(run_dir).life()["ended"]["reason"] == "SIGUSR1 at the Slurm job"
    assert asked(tmp_path) == ["scontrol show job --oneliner 7_2", *["scontrol requeue 7_2"] * requeued]


def test_a_run_that_was_warned_and_could_not_save_its_last_steps_goes_on_from_those_before(
    tmp_path: Path, fake: Fake
) -> None:
    fake("scontrol", "exit 0")
    run_dir = tmp_path / "run"
    lost = "; the last checkpoint could not be written (server 1 is gone): all steps since 40 are lost"
    ends = '"stopped", folder.stop_reason() or "nobody asked"'
    training = TRAINING.replace(ends, f'"failed", "server 0: " + folder.stop_reason() + {lost!r}')
    command = [sys.executable, "-c", training, str(run_dir), str(tmp_path / "warning")]
    job = SlurmJob(run_dir, command, TASK, LostNodes({}, run_dir, ["dba3c"]), heard=[signal.SIGUSR1])
    assert job.run() == 0
    assert RunFolder(run_dir).life()["ended"]["reason"].endswith(lost)
    assert asked(tmp_path) == ["scontrol requeue 7_2"]


@pytest.mark.parametrize(("preempted", "requeued"), [("None", 0), ("2026-11-27T01:13:45", 1)])
def test_a_run_that_ends_within_the_grace_of_a_preemption_is_requeued_and_one_that_was_cancelled_is_not(
    tmp_path: Path, fake: Fake, preempted: str, requeued: int
) -> None:
    fake("scontrol", f"echo JobId=7 PreemptEligibleTime=2026-11-27T01:13:40 PreemptTime={preempted} SuspendTime=None")
    run_dir = tmp_path / "run"
    training = (
        "import sys; from dba3c.runs.folder import RunFolder; "
        "folder = RunFolder.create(sys.argv[1], {}); folder.end_life('stopped', 'SIGTERM at worker 3'); "
        "folder.release()"
    )
    job = SlurmJob(run_dir, [sys.executable, "-c", training, str(run_dir)], TASK, LostNodes({}, run_dir, ["dba3c"]))
    assert job.run() == 0
    assert asked(tmp_path) == ["scontrol show job --oneliner 7_2", *["scontrol requeue 7_2"] * requeued]


@pytest.mark.parametrize(("preempted", "code", "requeued"), [("None", 128 + 15, 0), ("2026-12-01T01:13:45", 0, 1)])
def test_a_job_that_is_preempted_before_its_run_has_begun_is_requeued(
    tmp_path: Path, fake: Fake, preempted: str, code: int, requeued: int
) -> None:
    fake("scontrol", f"echo JobId=7 PreemptEligibleTime=2026-12-01T01:13:40 PreemptTime={preempted} SuspendTime=None")
    told = [sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"]  # a rank that still imports
    assert SlurmJob(tmp_path / "run", told, TASK, LostNodes({}, tmp_path / "run", ["dba3c"])).run() == code
    assert asked(tmp_path) == ["scontrol show job --oneliner 7_2", *["scontrol requeue 7_2"] * requeued]


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("pass", 1, "the run's chief has died: ending the others"),
        ("folder.end_life('finished', 'score reached')", 0, "the run has ended, srun has not: ending it"),
    ],
)
def test_a_job_whose_ranks_outlive_their_run_ends_them(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    ends: str, code: int, said: str,
) -> None:  # fmt: skip
    fake("scontrol", "exit 1")
    monkeypatch.setattr(slurm_job, "LOOK_S", 0.01)
    monkeypatch.setattr(slurm_job, "SRUN_FOLLOWS_S", 0.0)
    run_dir = tmp_path / "run"
    ranks = (
        "import sys, threading; from dba3c.runs.folder import RunFolder; "
        f"folder = RunFolder.create(sys.argv[1], {{}}, launch_id='7-0'); {ends}; folder.release(); "
        "threading.Event().wait()"
    )
    job = SlurmJob(run_dir, [sys.executable, "-c", ranks, str(run_dir)], TASK, LostNodes({}, run_dir, ["dba3c"]))
    assert job.run() == code
    assert said in capfd.readouterr().out


def test_a_job_is_requeued_a_hundred_times_at_most(tmp_path: Path, fake: Fake) -> None:
    fake("scontrol", "exit 0")
    assert controller.requeue({**TASK, "SLURM_RESTART_COUNT": "100"}) == "it has had 100 restarts"
    assert asked(tmp_path) == []
    assert controller.requeue({**TASK, "SLURM_RESTART_COUNT": "99"}) == ""


def test_a_job_that_is_not_requeued_fails_and_says_how_to_go_on(
    tmp_path: Path, fake: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    fake("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    run_dir, warning = tmp_path / "run", tmp_path / "warning"
    warning.touch()
    command = [sys.executable, "-c", TRAINING, str(run_dir), str(warning)]
    assert SlurmJob(run_dir, command, TASK, LostNodes({}, run_dir, ["dba3c"])).run() == 1
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "not requeued: " in line]
    assert "presently disabled" in line and line.endswith("; resume the run folder by hand")


def test_a_requeue_is_asked_for_until_the_controller_answers(tmp_path: Path, fake: Fake) -> None:
    fake("scontrol", f'[ "$(wc -l < {tmp_path}/asked)" -ge 3 ] || {{ echo "no controller" >&2; exit 1; }}')
    assert controller.requeue(TASK) == ""
    assert asked(tmp_path) == ["scontrol requeue 7_2"] * 3


def test_a_requeue_that_was_done_without_an_answer_is_not_told_as_refused(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    already = 'echo "Job/step already completing or completed for job 7_2" >&2; exit 1'
    fake("scontrol", already)
    assert "already completing" in controller.requeue(TASK)  # by somebody's scancel
    monkeypatch.setattr(controller, "ACT_TIMEOUT_S", 2.0)
    (tmp_path / "asked").unlink()
    fake("scontrol", f'[ "$(wc -l < {tmp_path}/asked)" -ge 2 ] || exec sleep 60; {already}')
    assert controller.requeue(TASK) == ""
    assert asked(tmp_path)[-1] == "scontrol requeue 7_2"


def test_a_controller_that_never_answers_is_named_after_a_bounded_number_of_tries(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "ACT_TIMEOUT_S", 0.2)
    fake("scontrol", "exec sleep 60")
    tries: list[object] = []
    ask = controller.ask
    monkeypatch.setattr(controller, "ask", lambda *words, **options: tries.append(words) or ask(*words, **options))
    assert controller.requeue(TASK) == "scontrol has not answered within 0.2 s"
    assert len(tries) == controller.REQUEUE_TRIES


def test_a_program_that_is_not_installed_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = controller.ask(["scontrol", "ping"])
    assert (answer.returncode, answer.stderr) == (127, "scontrol cannot be run: No such file or directory")


def test_a_job_name_in_another_encoding_is_no_reason_not_to_hear_of_the_others(fake: Fake) -> None:
    fake("squeue", r"printf '7 k\xf6ln\n8 n2\n'")
    assert controller.ask(["squeue", "--me"]).stdout.splitlines() == ["7 k\ufffdln", "8 n2"]


def test_a_task_of_an_array_never_means_the_whole_array(tmp_path: Path, fake: Fake) -> None:
    assert controller.job_name({"SLURM_JOB_ID": "7"}) == "7"
    assert controller.job_name(TASK) == "7_2"
    assert controller.job_name({**TASK, "SLURM_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "0"}) == "9"
    fake("scontrol", '[ "$1" = update ]')
    fake("scancel", "exit 0")
    give_back_nodes({**TASK, "SLURM_NNODES": "4"}, 2)
    (tmp_path / "run" / controller.FOLDER).mkdir(parents=True)
    said = controller.requeue_without_first_node(tmp_path / "run", "7-0", TASK)
    assert "job 7_2 is not requeued" in said
    everything = asked(tmp_path)
    assert everything[0] == "scontrol update JobId=7_2 NumNodes=2"
    assert everything[1:] == ["scontrol requeue 7_2"] * controller.REQUEUE_TRIES + ["scancel 7_2"]


def test_a_job_that_was_submitted_from_a_task_of_an_array_is_not_taken_for_that_task() -> None:
    inherited = {"SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "3"}
    assert controller.job_name({"SLURM_JOB_ID": "200", **inherited}) == "200"


def test_a_script_outside_of_slurm_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["job", "--run-dir", "run", "--", "dba3c", "train"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--run-dir", "run", "--nodez", "3", "--", "dba3c"], "did you mean --nodes"),
        (["--run-dir", "run", "--nodes", "0", "--", "dba3c"], "nodes must be at least 1, got 0"),
        (["--run-dir", "run"], "what follows -- is the command of every rank"),
    ],
)
def test_a_mistake_in_a_script_s_own_words_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["job", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_second_run_folder_in_the_script_s_options_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["job", "--run-dir", "run", "--", "dba3c", "train", "--run-dir=other"]) == 2
    assert "say DBA3C_RUN_DIR, not --run-dir" in capsys.readouterr().err


def test_a_run_folder_that_the_system_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / "file").touch()
    assert main(["job", "--run-dir", str(tmp_path / "file"), "--", "dba3c", "train"]) == 2
    assert capsys.readouterr().err == f"dba3c: [Errno 20] Not a directory: '{tmp_path}/file/.slurm'\n"


def test_a_read_that_fails_before_the_run_begins_does_not_make_an_earlier_life_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    with RunFolder.create(run_dir, {}) as folder:
        folder.end_life("finished", "score reached")
    away = iter([UserError(f"cannot read {run_dir}/meta.json: Stale file handle")])
    meta = RunFolder.meta

    def read(folder: RunFolder) -> dict[str, object]:
        for error in away:
            raise error
        return meta(folder)

    monkeypatch.setattr(slurm_job, "LOOK_S", 0.01)
    monkeypatch.setattr(RunFolder, "meta", read)
    command = [sys.executable, "-c", "import sys; sys.exit(2)"]
    assert SlurmJob(run_dir, command, TASK, LostNodes({}, run_dir, ["dba3c"])).run() == 2


def test_a_job_whose_earlier_lives_cannot_be_read_is_refused_before_it_starts_anything(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake("srun", "exit 0")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm_job, "META_S", 0.0)
    RunFolder.create(tmp_path / "run", {}).release()
    (tmp_path / "run" / "meta.json").write_text("{")
    assert main(["job", "--run-dir", str(tmp_path / "run"), "--", "dba3c", "train"]) == 2
    assert f"{tmp_path}/run/meta.json is not valid JSON" in capsys.readouterr().err
    assert asked(tmp_path) == []


def test_stopping_a_run_whose_job_waits_for_its_next_life_says_how_to_end_the_job(tmp_path: Path, fake: Fake) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, launch_id="7-0")
    controller.hold(folder.path).release()
    controller.note_job(folder.path, TASK)
    folder.request_stop(slurm_job.WARNING)
    fake("squeue", "echo RUNNING")
    with pytest.raises(
        UserError, match="is ending already: SIGUSR1 at the Slurm job, but job 7_2 is RUNNING and may go"
    ):
        stop([str(folder.path)])
    folder.end_life("stopped", slurm_job.WARNING)
    folder.release()
    fake("squeue", "echo PENDING")
    with pytest.raises(
        UserError, match="is not live: it is finished, but job 7_2 is PENDING .*: scancel 7_2 ends that"
    ):
        stop([str(folder.path)])
    assert asked(tmp_path)[-1] == "squeue --noheader --jobs=7_2 --format=%T"
    fake("squeue", "echo 'slurm_load_jobs error: no controller' >&2; exit 1")
    with pytest.raises(UserError, match="whether job 7_2 has a next life is not known .*no controller"):
        stop([str(folder.path)])
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(UserError, match="is not live: it is finished$"):
        stop([str(folder.path)])


def test_a_job_that_is_refused_in_another_s_folder_does_not_hide_that_one_s_next_life(
    tmp_path: Path, fake: Fake
) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, launch_id="7-0")
    controller.hold(folder.path).release()
    controller.note_job(folder.path, TASK)
    folder.end_life("stopped", slurm_job.WARNING)
    folder.release()
    command = [sys.executable, "-c", "import sys; sys.exit(2)"]
    refused = SlurmJob(folder.path, command, {"SLURM_JOB_ID": "8"}, LostNodes({}, folder.path, ["dba3c"]))
    assert refused.run() == 2
    fake("squeue", "echo PENDING")
    assert "job 7_2 is PENDING" in controller.next_life(folder.path)


def test_a_run_that_is_asked_to_stop_twice_is_ending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder.create(tmp_path / "run", {}) as folder:
        assert [stop([str(folder.path)]), stop([str(folder.path)])] == [0, 0]
    assert capsys.readouterr().out.splitlines() == [
        f"asked {folder.path} to end with a checkpoint",
        f"{folder.path} is ending already: dba3c stop",
    ]


def test_what_the_chief_refused_is_the_last_line_of_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    RunFolder.create(run_dir, {}, launch_id="6-0").release()
    chief = """import sys
from launch.cli.options import parse_train
from launch.cli.runs import train_as_rank
from launch.cluster.launchers import LaunchPlace
place = LaunchPlace(launcher="srun", world_size=2, tasks_per_node=(1, 1), address="localhost")
train_as_rank(parse_train(sys.argv[1:]), place, "")
"""
    words = ["CartPole-v1", "--servers", "1", "--run-dir", str(run_dir)]
    job = SlurmJob(run_dir, [sys.executable, "-c", chief, *words], TASK, LostNodes({}, run_dir, ["dba3c"]))
    assert job.run() != 0
    last_line = capfd.readouterr().out.splitlines()[-1]
    assert last_line.startswith(f"{run_dir} already holds a run: resume it (--resume), or choose another folder")


def test_a_signal_that_comes_before_the_ranks_are_started_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[list[int]]()

    class Job:
        def __init__(self, run_dir: Path, command: object, environ: object, lost_nodes: object, heard: list[int]):
            given.append(heard)

        def run(self) -> int:
            return 0

    monkeypatch.setattr("launch.slurm.job.give_back_nodes", lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
    monkeypatch.setattr("launch.slurm.job.SlurmJob", Job)
    assert slurm_job.run_job(tmp_path / "run", ["dba3c"], nodes=1) == 0
    assert given == [[signal.SIGUSR1]]
