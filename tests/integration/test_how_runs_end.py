"""A run ends as it was asked to, with all that it has learned, whatever becomes of its terminal, its disk or a game."""

import json
import os
import pty
import re
import shutil
import signal
from pathlib import Path

import pytest

from dba3c.config import TrainConfig
from dba3c.runs.folder import RunFolder
from tests.integration.runs import Run, newest_checkpoint, refused

CORRIDOR = (
    "train", "tests.integration.games:make_corridor", "--workers", "1", "--servers", "1", "--track",
    "--envs-per-worker", "2", "--metrics-window-s", "0.1",
)  # fmt: skip


def ended(folder: Path) -> dict[str, str]:
    """How the newest life ended, as its launch noted it."""
    return RunFolder.open(folder).life()["ended"]


def saved_step(folder: Path) -> int:
    return json.loads((newest_checkpoint(folder) / "manifest.json").read_text())["step"]


def wait_for_next_life(run: Run, role: str, rank: int) -> None:
    def seen() -> bool:
        return any(record["incarnation"] == 1 for record in run.records(role, rank))

    run.wait_until(seen, f"the next life of {role} {rank}", timeout_s=120.0)


def test_a_run_whose_terminal_is_closed_goes_on_and_ends_with_a_checkpoint_at_sighup(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    terminal, its_end = pty.openpty()
    with Run(*CORRIDOR, "--run-dir", str(folder), folder=folder, output=its_end) as run:
        os.close(its_end)
        run.wait_until(lambda: run.steps() > 5, "step 5")
        os.close(terminal)
        run.role("worker", 0).kill()  # so that there is something to say
        wait_for_next_life(run, "worker", 0)
        before = run.steps()
        run.wait_until(lambda: run.steps() > before + 20, "20 further steps")
        run.signal(signal.SIGHUP)  # what the shell of a lost ssh sends
        code, _ = run.wait()
    assert code == 0
    assert ended(folder)["outcome"] == "stopped"
    assert saved_step(folder) > before + 20


def test_a_run_whose_folder_was_deleted_does_not_end_well(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(*CORRIDOR, "--run-dir", str(folder), folder=folder) as run:
        run.wait_until(lambda: run.steps() > 5, "step 5")
        folder.rename(tmp_path / "away")
        run.signal(signal.SIGINT)
        code, said = run.wait()
    assert code == 4 and "was deleted: this launch has ended" in said


def test_a_last_checkpoint_that_cannot_be_written_fails_the_run_and_names_what_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(*CORRIDOR, "--run-dir", str(folder), "--checkpoint-every-steps", "20", folder=folder) as run:
        run.wait_until(lambda: any(r.get("event") == "checkpoint" for r in run.records("server", 0)), "a checkpoint")
        server = run.role("server", 0)
        server.suspend()  # between the two it would make the folder anew
        (folder / "checkpoints").rename(folder / "kept")
        (folder / "checkpoints").touch()  # nothing can be written there, not even by root
        server.resume()
        before = run.steps()
        run.wait_until(lambda: run.steps() > before + 20, "20 further steps")
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 3, output
    last = output.splitlines()[-1]
    since = re.search(r"all steps since (\d+) are lost", last)
    assert since and (folder / "kept" / f"step-{since[1]}" / "manifest.json").exists(), output
    assert ended(folder)["outcome"] == "failed"


def test_that_holds_without_servers_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("train", CORRIDOR[1], "--exchange", "local", "--workers", "1", "--track", *CORRIDOR[7:])
    with Run(*words, "--run-dir", str(folder), folder=folder) as run:
        run.wait_until(lambda: any(r["step"] > 5 for r in run.records("worker", 0)), "step 5")
        shutil.rmtree(folder / "checkpoints")
        (folder / "checkpoints").touch()
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 3, output
    assert "all steps since 0 are lost" in output.splitlines()[-1], output


@pytest.mark.parametrize("exchange", ["majority", "allreduce"])
def test_a_killed_rank_costs_a_majority_steps_and_ends_an_all_reduce_with_a_checkpoint(
    tmp_path: Path, exchange: str
) -> None:
    folder = tmp_path / "run"
    words = ("train", CORRIDOR[1], "--exchange", exchange, "--workers", "3", "--step-timeout-s", "10", *CORRIDOR[6:])

    with Run(*words, "--run-dir", str(folder), folder=folder) as run:

        def step() -> int:
            return max((record["step"] for record in run.records("worker", 1)), default=0)

        run.wait_until(lambda: step() > 20, "step 20")
        run.role("worker", 0 if exchange == "majority" else 2).kill()
        before = 0
        if exchange == "majority":
            wait_for_next_life(run, "worker", 0)
            before = step()
            run.wait_until(lambda: step() > before + 20, "further steps")
            run.signal(signal.SIGINT)
        code, output = run.wait()
    assert (code == 0) == (exchange == "majority"), output
    assert saved_step(folder) > before + 20


def test_a_run_whose_checkpoints_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create(tmp_path / "run", TrainConfig().to_json()).release()
    folder = RunFolder.open(tmp_path / "run")
    folder.checkpoints.rmdir()
    folder.checkpoints.symlink_to("/sys/kernel")  # a folder in which not even root can make a file
    assert str(folder.checkpoints) in refused(capsys, "resume", str(folder.path))
    assert len(folder.meta()["lives"]) == 1


def test_a_worker_whose_game_keeps_failing_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("train", "tests.integration.games:make_flaky_for_worker_1", "--workers", "2", *CORRIDOR[4:])
    with Run(*words, "--run-dir", str(folder), folder=folder) as run:
        wait_for_next_life(run, "worker", 1)
        before = run.steps()
        run.wait_until(lambda: run.steps() > before + 20, "20 further steps")
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 0, output
    told = next(line for line in output.splitlines() if "starting it again" in line)
    assert "worker 1" in told and "the corridor has collapsed" in told


def test_a_monitor_that_is_killed_is_started_again_and_stops_the_run_at_its_score(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(*CORRIDOR, "--run-dir", str(folder), "--stop-score", "-1", "--stop-games", "1000", folder=folder) as run:
        run.wait_until(lambda: run.steps() > 5, "step 5")
        run.role("monitor", 0).kill()
        code, output = run.wait()
    assert code == 0, output
    assert "monitor 0: killed by SIGKILL; starting it again" in output
    assert "games reached" in ended(folder)["reason"]
