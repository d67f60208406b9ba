"""Several learners, each with its own actors, train one set of parameters: over every exchange, in real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from param_servers.checkpoint.files import load_checkpoint
from tests.integration.runs import ROOT, Run, newest_checkpoint, records
from tests.integration.test_presets import R2D2, SAC

BIN = Path(sys.executable).parent
COMMON = ("--track", "--metrics-window-s", "0.1", "--step-timeout-s", "30", "--join-timeout-s", "100")
CENTRAL = (
    "train", "CartPole-v1", "--mode", "central", "--actors", "2", "--envs-per-actor", "4", "--unroll-length", "5",
    "--batch-unrolls", "4", "--total-frames", "2000", *COMMON,
)  # fmt: skip
AS_ROOT = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")


def check_that_both_learned(folder: Path) -> None:
    """Both learners' gradients, of their own actors' experience, are in every update."""
    steps = [[r for r in records(folder, "learner", rank) if r["kind"] == "step"] for rank in range(2)]
    accepted = [sum(r.get("accepted", 0) for r in of_learner) for of_learner in steps]
    taken = [sum(r.get("agent_steps", 0) for r in records(folder, "actor", rank)) for rank in range(2)]
    assert min(accepted) > 20 and abs(accepted[0] - accepted[1]) <= 2, accepted
    assert min(taken) >= 17 * min(accepted), taken  # of an update's 20 positions some are resets
    for rank in range(2):
        joined = [r["message"] for r in records(folder, "learner", rank) if r.get("event") == "joined"]
        # its own actor only; (a number of the exchange's own events may be there as well)
        assert any(f"actor {rank} " in line for line in joined), joined
        assert not any(f"actor {1 - rank} " in line for line in joined), joined
    updates = load_checkpoint(newest_checkpoint(folder)).step
    assert abs(updates - accepted[0]) <= 2


def test_two_learners_share_every_update(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("--learners", "2", "--exchange", "servers", "--servers", "2", "--run-dir", str(folder))
    with Run(*CENTRAL, *words, folder=folder) as run:
        code, output = run.wait(timeout_s=280)
    assert code == 0, output
    check_that_both_learned(folder)
    lines = [json.loads(line) for line in (folder / "audit" / "commits.jsonl").read_text().splitlines()]
    members = [[member[0] for member in line["members"]] for line in lines if line["kind"] == "commit"]
    assert members and all(sorted(step) == [0, 1] for step in members)


@pytest.mark.parametrize(("algorithm", "exchange"), [(R2D2, "allreduce"), (SAC, "servers")], ids=["r2d2", "sac"])
def test_two_learners_with_a_replay_each_share_every_update(
    algorithm: tuple[str, ...], exchange: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = (*algorithm, "--actors", "2", "--learners", "2", "--exchange", exchange, "--total-frames", "800")
    with Run("train", *words, *COMMON, "--run-dir", str(folder), folder=folder) as run:
        code, output = run.wait(timeout_s=280)
    assert code == 0, output
    steps = [[r for r in records(folder, "learner", rank) if r["kind"] == "step"] for rank in range(2)]
    accepted = [sum(r.get("accepted", 0) for r in of_learner) for of_learner in steps]
    taken = [sum(r.get("agent_steps", 0) for r in records(folder, "actor", rank)) for rank in range(2)]
    assert min(accepted) >= 5 and abs(accepted[0] - accepted[1]) <= 2, accepted
    assert min(taken) >= 100, taken
    assert abs(load_checkpoint(newest_checkpoint(folder)).step - accepted[0]) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "backend"),
    [
        (("mpirun", *AS_ROOT, "-n", "2"), "mpi"),
        (("horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"), "horovod"),
    ],
    ids=["mpi", "horovod"],
)
def test_two_learners_with_their_actors_beside_them_sum_over_all_ranks(
    launcher: tuple[str, ...], backend: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec({"mpi": "mpi4py", "horovod": "horovod"}[backend]) is None:
        pytest.skip(f"no {backend}")
    folder = tmp_path / "run"
    words = ("--exchange", "allreduce", "--collective-backend", backend, "--run-dir", str(folder))
    launched((*launcher, str(BIN / "dba3c")), *words)
    check_that_both_learned(folder)


def launched(launcher: tuple[str, ...], *words: str) -> str:
    """What the ranks say that a launcher starts, and that all end well."""
    if shutil.which(launcher[0], path=str(BIN)) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*launcher, *CENTRAL, *words]
    answer = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said
    return said
