"""Nodes of 12 cores on a real Slurm, oversubscribed here: 12 lanes in each worker, some of which are lost."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from dba3c.roles import PER_START
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


def test_four_nodes_of_twelve_lanes_outlive_a_lane_and_a_node_and_are_preempted_and_requeued(
    small_cluster: Cluster, tmp_path: Path
) -> None:
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

    node = job.nodes()[3]
    small_cluster.kill_node(node)
    before = len(job.commits())
    job.wait_until(lambda: len(job.commits()) > before + 3, "steps without the node")
    small_cluster.revive_node(node)
    job.wait_until(lambda: [3, PER_START] in [member[:2] for member in job.members()], "worker 3 on the returned node")

    small_cluster.run("sbatch", "--partition=urgent", "--nodes=5", "--output=/dev/null", "--wrap=true")
    job.wait_until(lambda: "ended" in job.lives()[0], "the checkpoint, for which Slurm gives a while")
    first_life = job.commits()[-1]["step"]
    job.wait_for_life(2)
    job.wait_until(lambda: job.commits()[-1]["step"] > first_life + 2, "steps of the second life")
    small_cluster.run("scancel", job.number)
    job.wait_for_end()
    steps = [commit["step"] for commit in job.commits()]
    assert steps == list(range(len(steps)))  # nothing twice, nothing left out
