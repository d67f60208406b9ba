"""A study in real processes: who stops it stops its training too."""

import json
import signal

import psutil
import pytest

from tests.integration.runs import Run

WORDS = (
    "study", "learning_curves", "--env", "CartPole-v1", "--workers", "1", "--servers", "1", "--seeds", "2",
)  # fmt: skip
ENDLESS = ("--", "--stop-score", "100000", "--track", "--metrics-window-s", "0.2")


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_ends_its_training_with_a_checkpoint_and_starts_no_other(tmp_path, signum):
    folder = tmp_path / "study"
    first, second = (folder / "learning" / f"seed-{seed}" for seed in (0, 1))
    with Run(*WORDS, "--into", str(folder), *ENDLESS, folder=folder) as run:
        run.wait_until(lambda: any((first / "metrics").glob("worker-*.jsonl")), "training", timeout_s=90)
        processes = run.children()
        run.signal(signum)
        code, output = run.wait(timeout_s=90)
        assert code == 128 + signum, output
        assert "the same command goes on from here" in output
        psutil.wait_procs(processes, timeout=30)
        assert not [process for process in processes if process.is_running()]
    assert any((first / "checkpoints").iterdir()) and not second.exists()
    ended = json.loads((first / "meta.json").read_text())["lives"][-1]["ended"]
    assert (ended["outcome"], ended["reason"]) == ("stopped", signum.name)
    with Run("study", "learning_curves", "--list", "--into", str(folder), folder=folder) as listed:
        _, output = listed.wait()
    assert "stopped" in output and "0 of 2 runs are finished" in output


@pytest.mark.slow
def test_the_training_of_a_killed_study_ends_too(tmp_path):
    folder = tmp_path / "study"
    first = folder / "learning" / "seed-0"
    with Run(*WORDS, "--into", str(folder), *ENDLESS, folder=folder) as run:
        run.wait_until(lambda: any((first / "metrics").glob("worker-*.jsonl")), "training", timeout_s=90)
        processes = run.children()
        run.signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(processes, timeout=90)
        assert not alive
