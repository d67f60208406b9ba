"""All-reduce between real processes: over torch.distributed, mpirun and horovodrun; ranks killed and stopped."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from param_servers.checkpoint.files import find_newest
from tests.integration.runs import ROOT
from tests.waiting import wait_until

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
RANK = [sys.executable, "-m", "tests.integration.allreduce_rank"]
MPIRUN = [str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
needs_mpi = pytest.mark.skipif(not importlib.util.find_spec("mpi4py") or not (BIN / "mpirun").exists(), reason="no MPI")
needs_horovod = pytest.mark.skipif(not importlib.util.find_spec("horovod"), reason="Horovod is not installed")
ENDLESS = ["--steps", "100000000"]


def start(command):
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def finish(process, timeout_s=120):
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


@pytest.fixture
def torch_ranks(tmp_path):
    """torch_ranks(size, *options): as many processes, gone with the test."""
    ranks = []

    def begin(size, *options):
        where = ["--backend", "torch", "--size", str(size), "--meet", str(tmp_path), *options]
        ranks.extend(start([*RANK, *where, "--rank", str(rank)]) for rank in range(size))
        return ranks

    yield begin
    for process in ranks:
        process.kill()
        process.communicate()


@needs_mpi
def test_four_ranks_under_mpirun_agree_with_torch_optim():
    code, out, err = finish(start([*MPIRUN, "-n", "4", *RANK, "--backend", "mpi"]))
    assert code == 0, err
    assert out.count("largest difference from torch.optim") == 4


@needs_mpi
def test_two_ranks_of_two_lanes_under_mpirun_are_bit_equal_to_torch_optim():
    code, out, err = finish(start([*MPIRUN, "-n", "2", *RANK, "--backend", "mpi", "--lanes", "2"]))
    assert code == 0, err
    assert out.count("difference from torch.optim 0\n") == 2


SUMS = """
import torch
from param_servers.allreduce.mpi_horovod import MpiCollective
from param_servers.config import ExchangeConfig
collective = MpiCollective(ExchangeConfig(exchange="allreduce"))
n = collective.size
for size in (7, 3_000, 20_000, 700_000):
    for _ in range(3):
        tensor = torch.arange(size, dtype=torch.float32) + collective.rank
        collective.all_reduce_sum_(tensor)
        assert torch.equal(tensor, float(n) * torch.arange(size) + n * (n - 1) / 2), size
"""


@needs_mpi
@pytest.mark.parametrize("ranks", ["2", "3", "4"])
def test_sums_of_any_length_under_mpirun_are_exact(ranks):
    code, _, err = finish(start([*MPIRUN, "-n", ranks, sys.executable, "-c", SUMS]))
    assert code == 0, err


@needs_horovod
@pytest.mark.parametrize("lanes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_ranks_under_horovodrun_are_bit_equal_to_torch_optim(lanes):
    rank = [*RANK, "--backend", "horovod", "--lanes", str(lanes)]
    code, out, err = finish(start([str(BIN / "horovodrun"), "--gloo", "-np", "2", *rank]))
    assert code == 0, err
    assert out.count("difference from torch.optim 0") == 2


@pytest.mark.slow
@needs_horovod
@needs_mpi
def test_horovod_works_over_mpi_too():
    code, out, err = finish(start([*MPIRUN, "-n", "2", *RANK, "--backend", "horovod"]))
    assert code == 0, err
    assert out.count("difference from torch.optim 0") == 2


def test_a_killed_process_is_named_and_a_survivor_leaves_a_checkpoint(torch_ranks, tmp_path):
    ranks = torch_ranks(3, *ENDLESS, "--checkpoint-dir", str(tmp_path / "checkpoints"))
    wait_until(lambda: find_newest(tmp_path / "checkpoints") is not None, "a checkpoint")
    ranks[2].kill()
    finish(ranks[2])
    for process in reversed(ranks[:2]):
        code, out, err = finish(process, timeout_s=90)
        assert code == 2 and err.startswith("allreduce: rank 2 of 3 does not answer: ") and err.count("\n") == 1
    (step,) = re.findall(r"step (\d+) failed", out)  # of rank 0, which writes checkpoints every 50 steps
    assert find_newest(tmp_path / "checkpoints").name == f"step-{step}"


def test_the_death_of_rank_0_is_told_by_all_others(torch_ranks, tmp_path):
    ranks = torch_ranks(3, *ENDLESS, "--checkpoint-dir", str(tmp_path / "checkpoints"))
    wait_until(lambda: find_newest(tmp_path / "checkpoints") is not None, "a checkpoint")
    ranks[0].kill()
    finish(ranks[0])
    for process in ranks[1:]:
        code, _, err = finish(process, timeout_s=90)
        assert code == 2 and err.startswith("allreduce: rank 0 of 3 does not answer: ")


def test_a_stopped_rank_0_is_named_within_the_step_timeout_and_a_survivor_leaves_a_checkpoint(torch_ranks, tmp_path):
    options = ["--timeout-s", "10", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    ranks = torch_ranks(3, *ENDLESS, *options)
    wait_until(lambda: find_newest(tmp_path / "checkpoints") is not None, "a checkpoint")
    before = find_newest(tmp_path / "checkpoints")
    ranks[0].send_signal(signal.SIGSTOP)
    for process in ranks[1:]:
        code, _, err = finish(process, timeout_s=90)
        assert code == 2 and err.startswith("allreduce: rank 0 of 3 does not answer: ") and err.count("\n") == 1
    assert find_newest(tmp_path / "checkpoints") != before


def test_a_rank_that_joins_a_stopped_rank_0_does_not_wait_for_ever(tmp_path):
    command = [*RANK, "--backend", "torch", "--size", "2", "--meet", str(tmp_path)]
    host = start([*command, "--rank", "0"])
    try:
        wait_until((tmp_path / "address.json").exists, "its address")
        host.send_signal(signal.SIGSTOP)
        code, _, err = finish(start([*command, "--rank", "1", "--join-timeout-s", "2"]), timeout_s=90)
        assert code == 2 and err.startswith("allreduce: rank 0 at 127.0.0.1:") and "did not answer" in err
    finally:
        host.kill()
        finish(host)


@needs_mpi
def test_a_stopped_rank_under_mpirun_is_named_within_the_step_timeout(tmp_path):
    options = ["--backend", "mpi", *ENDLESS, "--timeout-s", "10", "--checkpoint-dir", str(tmp_path)]
    mpirun = start([*MPIRUN, "-n", "3", *RANK, *options])
    wait_until(lambda: find_newest(tmp_path) is not None, "a checkpoint")
    ranks = {child.environ().get("PMIX_RANK"): child for child in psutil.Process(mpirun.pid).children(recursive=True)}
    ranks["1"].send_signal(signal.SIGSTOP)
    try:
        code, _, err = finish(mpirun, timeout_s=90)
    finally:
        if ranks["1"].is_running():
            ranks["1"].kill()
    assert code != 0 and "allreduce: rank 1 of 3 does not answer: waited 10 s" in err


@needs_horovod
def test_a_killed_process_under_horovodrun_ends_the_others(tmp_path):
    options = ["--backend", "horovod", *ENDLESS, "--timeout-s", "5", "--checkpoint-dir", str(tmp_path)]
    run = start([str(BIN / "horovodrun"), "--gloo", "-np", "2", *RANK, *options])
    wait_until(lambda: find_newest(tmp_path) is not None, "a checkpoint")
    ranks = [
        child
        for child in psutil.Process(run.pid).children(recursive=True)
        if "allreduce_rank" in " ".join(child.cmdline())
    ]
    victim = next(child for child in ranks if child.environ().get("HOROVOD_RANK") == "1" and not child.children())
    victim.kill()
    code, _, _ = finish(run, timeout_s=90)
    assert code != 0
