"""Central inference in real processes: `dba3c train --mode central`, and the faults it must survive."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runs import ROOT, Run, newest_checkpoint, records, refused

WORDS = (
    "train", "tests.integration.games:make_corridor", "--mode", "central", "--actors", "3", "--envs-per-actor", "4",
    "--unroll-length", "5", "--batch-unrolls", "4", "--track", "--metrics-window-s", "0.1",
    "--checkpoint-every-steps", "20", "--step-timeout-s", "10", "--reconnect-timeout-s", "40", "--join-timeout-s", "60",
)  # fmt: skip


def started(folder: Path, *words: str) -> Run:
    return Run(*WORDS, "--run-dir", str(folder), *words, folder=folder)


def step(folder: Path) -> int:
    """The newest step that the learner has written down."""
    return max((record["step"] for record in records(folder, "learner", 0)), default=0)


def events(folder: Path, kind: str) -> list[str]:
    return [r["message"] for r in records(folder, "learner", 0) if r["kind"] == "event" and r["event"] == kind]


def rejoined(folder: Path) -> list[str]:
    """Actors that came to the learner's second life."""
    found = [r for r in records(folder, "learner", 0) if r["kind"] == "event" and r["event"] == "joined"]
    return sorted({r["message"] for r in found if r["incarnation"] == 1})


def further(run: Run, folder: Path, steps: int, what: str) -> None:
    """Wait until training has gone on by some steps."""
    goal = step(folder) + steps
    run.wait_until(lambda: step(folder) >= goal, f"{steps} more steps {what}", timeout_s=100.0)


def test_training_goes_on_when_actors_are_killed_and_frozen_and_they_may_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder) as run:
        run.wait_until(lambda: len(events(folder, "joined")) >= 3, "three actors", timeout_s=100.0)
        further(run, folder, 5, "with all actors")
        frozen, *killed = [run.role("actor", rank) for rank in range(3)]
        frozen.suspend()
        for actor in killed:
            actor.kill()
        run.wait_until(lambda: len(events(folder, "left")) >= 2, "the deaths to be noticed")
        run.wait_until(
            lambda: sum("(incarnation 1)" in line for line in events(folder, "joined")) >= 2,
            "the killed actors' next lives",
            timeout_s=100.0,
        )
        further(run, folder, 5, "beside a frozen actor")
        before = len(records(folder, "actor", 0))
        frozen.resume()
        further(run, folder, 5, "with the thawed actor")
        run.wait_until(lambda: len(records(folder, "actor", 0)) > before, "steps of the thawed actor")
        assert not any("actor 0" in line for line in events(folder, "left"))
        run.wait_until(lambda: any(r["kind"] == "episode" for r in records(folder, "actor", 0)), "a game of its own")
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 0, output
    assert (newest_checkpoint(folder) / "manifest.json").exists()


def test_a_killed_learner_goes_on_from_its_checkpoint_and_its_actors_find_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "--actors", "2") as run:
        run.wait_until(lambda: step(folder) >= 45, "step 45", timeout_s=100.0)
        run.wait_until(lambda: any(folder.glob("checkpoints/step-*/manifest.json")), "a checkpoint", timeout_s=100.0)
        run.role("learner", 0).kill()
        run.wait_until(
            lambda: any(r["incarnation"] == 1 and r["kind"] == "step" for r in records(folder, "learner", 0)),
            "the learner's next life",
            timeout_s=100.0,
        )
        run.wait_until(
            lambda: rejoined(folder) == ["actor 0 (incarnation 0)", "actor 1 (incarnation 0)"],
            "both actors at the new learner",
        )
        further(run, folder, 5, "after the learner's death")
        run.signal(signal.SIGINT)
        code, output = run.wait()
    assert code == 0, output
    lives = [r for r in records(folder, "learner", 0) if r["kind"] == "step"]
    first_of_second_life = next(r["step"] for r in lives if r["incarnation"] == 1)
    assert first_of_second_life > 20  # from a checkpoint, not from nothing


def test_an_actor_that_is_started_by_hand_joins_a_live_run_and_leaves_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "--actors", "1") as run:
        further(run, folder, 5, "with one actor")
        command = [sys.executable, "-m", "launch.role", "--run-dir", str(folder), "--role", "actor", "--rank", "1"]
        joining = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            run.wait_until(
                lambda: "actor 1 (incarnation 0)" in events(folder, "joined"), "the new actor", timeout_s=100.0
            )
            run.wait_until(lambda: records(folder, "actor", 1), "its first steps")
            further(run, folder, 5, "with two actors")
            run.signal(signal.SIGINT)
            code, output = run.wait()
            told, _ = joining.communicate(timeout=60)
        finally:
            joining.kill()
    assert code == 0, output
    assert (joining.returncode, told.startswith("actor 1: ")) == (0, True), told


def test_a_loss_that_cannot_learn_from_older_policies_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--algorithm vtrace or r2d2 or sac" in refused(capsys, *WORDS, "--algorithm", "actor_critic")
