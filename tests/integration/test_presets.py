"""Every preset trains, from the command line: real processes, small numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from param_servers.checkpoint.files import load_checkpoint
from tests.integration.runs import Run, charts, newest_checkpoint, records

ONE_ACTOR = ("--actors", "1", "--envs-per-actor", "4")
MEMORY = "tests.integration.games:make_memory_cue"
SAC = (
    "Pendulum-v1", "--preset", "sac", *ONE_ACTOR, "--replay-start", "40", "--replay-batch", "16", "--hidden-size", "8",
    "--replay-ratio", "4",
)  # fmt: skip
R2D2 = (
    MEMORY, "--preset", "r2d2", *ONE_ACTOR, "--unroll-length", "6", "--burn-in", "2", "--replay-start", "50",
    "--replay-capacity", "4000", "--replay-batch", "4", "--memory-size", "8", "--dueling-size", "8",
)  # fmt: skip
PRESETS = {
    "impala": (
        "ALE/Breakout-v5", "--preset", "impala", "--network", "small", *ONE_ACTOR, "--unroll-length", "5",
        "--batch-unrolls", "4",
    ),
    "r2d2": R2D2,
    "sac": SAC,
    "ppo": (
        "CartPole-v1", "--preset", "ppo", "--workers", "2", "--envs-per-worker", "2", "--rollout-length", "16",
        "--ppo-epochs", "2", "--ppo-minibatches", "2",
    ),
}  # fmt: skip
OWN_CHARTS = {
    "impala": {"loss/importance_weight", "policy/lag_mean"},
    "r2d2": {"loss/importance_weight", "value/td_error", "replay/priority"},
    "sac": {"loss/critic", "loss/temperature", "policy/temperature"},
    "ppo": {"policy/clip_fraction", "policy/kl"},
}
COMMON = ("--track", "--metrics-window-s", "0.1", "--step-timeout-s", "30")


def trained(folder: Path, *words: str) -> str:
    with Run("train", *words, *COMMON, "--run-dir", str(folder), folder=folder) as run:
        code, output = run.wait(timeout_s=280)
    assert code == 0, output
    return output


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_trains_from_the_command_line_and_one_with_a_replay_resumes(name: str, tmp_path: Path) -> None:
    folder, words = tmp_path / "run", PRESETS[name]
    trained(folder, *words, "--total-frames", "1000" if name == "impala" else "300")
    found = [r for role in ("worker", "learner") for r in records(folder, role, 0) if r["kind"] == "step"]
    assert sum(record.get("accepted", 0) for record in found) >= 5
    losses = [record["loss_total"] for record in found if "loss_total" in record]
    assert losses and all(loss is not None for loss in losses)
    before = load_checkpoint(newest_checkpoint(folder)).step
    assert before >= 5
    assert OWN_CHARTS[name] - set(charts(folder)) == set()
    if name not in ("r2d2", "sac"):
        return
    trained(folder, *words, "--total-frames", "450", "--resume")
    assert load_checkpoint(newest_checkpoint(folder)).step > before
    assert "the replay begins empty, the target network as a copy of the parameters" in [
        r["message"] for r in records(folder, "learner", 0) if r.get("event") == "resumed"
    ]


def test_a_run_that_ends_while_its_replay_is_filling_says_so_in_its_last_line(tmp_path: Path) -> None:
    words = ("Pendulum-v1", "--preset", "sac", *ONE_ACTOR, "--replay-start", "1000000", "--max-hours", "0.001")
    last = trained(tmp_path / "run", *words).strip().splitlines()[-1]
    assert ", before the first update, while the replay was filling: it begins with 1,000,000 frames; folder" in last
