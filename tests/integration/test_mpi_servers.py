"""Servers and workers over MPI, with a real mpirun; under ULFM one of them is killed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from param_servers.allreduce.selftest import OPTIMIZER, gradient, initial_parameters
from param_servers.checkpoint.snapshots import find_newest, load_checkpoint
from param_servers.servers.audit import history, read_audit, replay

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
MPIRUN = [str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("mpi4py") or not (BIN / "mpirun").exists(), reason="MPI is not installed"
)


def mpirun(ranks, folder, *arguments, options=()):
    command = [*MPIRUN, *options, "-n", str(ranks), sys.executable, str(Path(__file__).with_name("mpi_servers.py"))]
    command += [str(folder), *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=90)


def events(folder, rank):
    lines = (folder / f"rank-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_against_replay(folder, steps):
    """The checkpoint is bit-equal to a replay of the audit log; every step has its members."""
    checkpoint = load_checkpoint(find_newest(folder / "checkpoints"))
    lines = list(read_audit(folder / "audit.jsonl"))
    replayed = replay(
        initial_parameters(), OPTIMIZER, lines, lambda life, worker, incarnation, sequence: gradient(worker, sequence)
    )
    assert checkpoint.step == steps and torch.equal(checkpoint.parameters, replayed)
    return [[member[0] for member in commit["members"]] for commit in history(lines)]


def test_two_servers_and_three_workers_over_mpi_are_bit_equal_to_a_replay(tmp_path):
    run = mpirun(5, tmp_path, 2, 0, 20)
    assert run.returncode == 0, run.stderr
    assert all(events(tmp_path, rank)[-1]["message"] == "enough" for rank in range(5))
    assert check_against_replay(tmp_path, 20) == [[0, 1, 2]] * 20


@pytest.mark.slow
def test_a_worker_killed_in_its_push_is_named_and_the_others_go_on_under_ulfm(tmp_path):
    run = mpirun(5, tmp_path, 2, 1, 30, 1, 6, options=["--with-ft", "ulfm"])
    for rank in (0, 1, 2, 4):
        assert events(tmp_path, rank)[-1]["message"] == "enough", run.stderr
    assert "worker 1 left: its process died" in [event["message"] for event in events(tmp_path, 0)]
    members = check_against_replay(tmp_path, 30)
    assert all(len(step) == 2 for step in members) and members[-1] == [0, 2]
