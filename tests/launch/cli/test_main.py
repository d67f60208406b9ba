"""What any command does where the run, the folder or the user is gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dba3c.config import TrainConfig
from dba3c.metrics import watch as live_view
from dba3c.runs.folder import RunFolder
from launch.cli.main import main


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_watching_a_run_that_has_failed_ends_as_a_failure(tmp_path: Path, outcome: str, code: int) -> None:
    with RunFolder.create(tmp_path / "run", TrainConfig().to_json()) as run:
        run.end_life(outcome, "worker 0: it is full")
    assert live_view.watch(run.path) == outcome
    assert main(["watch", str(run.path)]) == code


def test_watching_a_run_whose_launch_is_gone_ends_as_a_failure_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create(tmp_path / "run", TrainConfig().to_json()).release()
    assert main(["watch", str(tmp_path / "run")]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"this run is broken, its launch is gone: dba3c resume {tmp_path / 'run'} goes on from step 0"


def test_who_would_go_on_with_a_run_that_its_slurm_job_goes_on_with_hears_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "job 7 is PENDING and goes on with it in a next life: scancel 7 ends that too"
    monkeypatch.setattr("launch.slurm.controller.next_life", lambda run_dir: told)
    monkeypatch.setattr("launch.running.train", lambda *_, **__: (0, None))
    run = str(tmp_path / "run")
    RunFolder.create(tmp_path / "run", TrainConfig().to_json()).release()
    assert main(["watch", run]) == 1
    assert capsys.readouterr().out.endswith(f"goes on from step 0, but {told}\n")
    assert main(["resume", run]) == 0
    assert capsys.readouterr().err == f"dba3c: warning: {told}\n"


def test_a_directory_that_was_deleted_under_the_user_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    command = f'mkdir {gone}; cd {gone}; rmdir {gone}; PYTHONPATH={Path.cwd()} "{sys.executable}" -m launch plot x'
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (2, "dba3c: the current directory was deleted: cd to one that is there\n")


@pytest.mark.parametrize("words", ["train CartPole-v1 --run-dir", "resume", "watch", "stop", "plot"])
def test_a_path_that_the_system_refuses_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300
    assert main([*words.split(), name]) == 2
    said = capsys.readouterr().err
    assert re.match(rf"dba3c: (?:warning: left out: )?(?:cannot read )?\S*{name}\S*: File name too long\n", said)


def test_ctrl_c_where_there_is_nothing_to_save_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.cli.runs.train", interrupted)
    assert main(["train", "CartPole-v1"]) == 130
    assert capsys.readouterr().err == "dba3c: interrupted\n"


@pytest.mark.parametrize(
    "words", ["watch RUN", "stop RUN", "plot RUN", "sbatch breakout_64nodes", "study scaling --slurm"]
)
def test_what_is_printed_to_a_closed_output_has_failed(words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launch", *words.split()]
    said = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (2, "dba3c: cannot write: stdout is closed\n")


@pytest.mark.parametrize("command", ["watch", "stop", "plot", "resume", "evaluate", "train CartPole-v1 --run-dir"])
def test_a_home_of_nobody_and_links_in_a_circle_are_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in ("~nobody-has-this-name/run", str(tmp_path / "a")):
        assert main([*command.split(), path]) == 2
        said = capsys.readouterr().err
        assert "cannot read" in said and path in said and said.splitlines()[-1].startswith("dba3c: ")


@pytest.mark.parametrize(
    "words",
    [
        "train CartPole-v1 --stop-games 1e19",
        "simulate --compute-variation 1e200",
        "simulate --compute-ms 1e300",
        "simulate --straggler-probability 0.5 --straggler-slowdown 1e300",
        "study architectures --workers 0",
        "study scaling --seeds 1e30",
        "sweep CartPole-v1 --learning-rate 1e-3 1e-4 --seeds 1e30",
        "simulate --run",
        "study scaling --values",
    ],
)
def test_numbers_beyond_use_and_lists_of_nothing_are_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and not said.out and not [*tmp_path.iterdir()]
