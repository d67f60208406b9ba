"""Nodes of 12 cores on a real Slurm, oversubscribed here: 12 lanes in each worker, one of which is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from tests.cluster.conftest import Cluster, Job

ENDLESS = "--total-frames 1000000000 --stop-score 1000000 --checkpoint-every-steps 5"
LANES = 12


def worker(job: Job, rank: int) -> psutil.Process:
    """The process of a worker's first lane: of all that are called so, the one whose children are, too."""
    wanted = ["--run-dir", str(job.run_dir), "--role", "worker", "--rank", str(rank)]
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(words[i : i + len(wanted)] == wanted for i in range(len(words))) and process.children():
            return process
    raise AssertionError(f"no process plays worker {rank}")


def test_four_nodes_of_twelve_lanes_outlive_a_lane(small_cluster: Cluster, tmp_path: Path) -> None:
    args = f"{ENDLESS} --servers 1 --backup-workers 0 --lanes {LANES} --envs-per-worker {LANES}"
    job = small_cluster.submit("breakout_64nodes.sh", tmp_path, "--nodes=4", args=args, preset="breakout")
    job.wait_for_commits(5)
    assert f"4 gradients × {LANES} lanes × 1 environment × 5 steps = 240 samples an update" in job.output
    assert {len(commit["members"]) for commit in job.commits()} == {4}  # a gradient for each node, not for each lane
    metrics = job.run_dir / "metrics"
    job.wait_until(lambda: len(list(metrics.glob("worker-*.jsonl"))) == 4 * LANES, "the records of every lane")

    lanes = worker(job, 1).children()
    assert len(lanes) == LANES - 1
    lanes[4].send_signal(signal.SIGKILL)
    job.wait_until(lambda: [1, 1] in [member[:2] for member in job.members()], "worker 1's next life")
    _, left = psutil.wait_procs(lanes, timeout=60)
    assert not left

    small_cluster.run("scancel", job.number)
    job.wait_for_end()
    steps = [commit["step"] for commit in job.commits()]
    assert steps == list(range(len(steps)))  # nothing twice, nothing left out
