"""Nodes of a real Slurm die in the middle of a run, and come back or do not."""

from __future__ import annotations

import re
from pathlib import Path

from dba3c.roles import PER_START
from tests.cluster.conftest import Cluster, Job

ENDLESS = "--total-frames 1000000000 --stop-score 1000000 --checkpoint-every-steps 5"


def replacement_is_announced(job: Job, node: str) -> None:
    job.wait_until(lambda: f"node {node} is lost; job " in job.output, f"a replacement of {node}")


def told(job: Job) -> set[str]:
    """Events that the ranks have recorded."""
    files = [path.relative_to(job.run_dir) for path in (job.run_dir / "metrics").glob("launcher-*.jsonl")]
    return {record["event"] for name in files for record in job.records(str(name)) if record["kind"] == "event"}


def server_incarnation(job: Job, rank: int) -> int:
    return max((record["incarnation"] for record in job.records(f"metrics/server-{rank}.jsonl")), default=-1)


def test_a_lost_node_costs_its_worker_not_the_run_and_rejoins_with_its_server_when_it_returns(
    small_cluster: Cluster, tmp_path: Path
) -> None:
    args = f"{ENDLESS} --servers 2 --backup-workers 1"
    job = small_cluster.submit("breakout_64nodes.sh", tmp_path, "--nodes=5", args=args)
    job.wait_for_commits(5)
    nodes = job.nodes()

    worker = nodes[4]  # without a server beside it
    small_cluster.kill_node(worker)
    before = len(job.commits())
    job.wait_until(lambda: len(job.commits()) > before + 5, "steps without the node")
    replacement_is_announced(job, worker)
    assert job.nodes() == nodes[:4]  # Slurm has taken it out of the job, and nothing gives it back
    small_cluster.revive_node(worker)
    job.wait_until(lambda: [4, PER_START] in [member[:2] for member in job.members()], "worker 4 on the returned node")

    server = nodes[1]
    small_cluster.kill_node(server)
    replacement_is_announced(job, server)
    small_cluster.revive_node(server)
    job.wait_until(lambda: server_incarnation(job, 1) == PER_START, "server 1 on the returned node")
    job.wait_until(lambda: [1, PER_START] in [member[:2] for member in job.members()], "worker 1 beside it")
    before = len(job.commits())
    job.wait_until(lambda: len(job.commits()) > before + 5, "steps with the returned server")

    small_cluster.run("scancel", job.number)
    job.wait_for_end()
    assert job.lives()[0]["ended"]["outcome"] == "stopped", job.output
    job.wait_until(lambda: small_cluster.run("squeue", "-h") == "", "the replacements to end with the run")


def test_a_replacement_that_is_cancelled_alone_is_replaced_and_does_not_end_the_run(
    small_cluster: Cluster, tmp_path: Path
) -> None:
    job = small_cluster.submit(
        "breakout_64nodes.sh", tmp_path, "--nodes=4", args=f"{ENDLESS} --servers 2 --backup-workers 1"
    )
    job.wait_for_commits(5)
    node = job.nodes()[3]  # without a server beside it
    small_cluster.kill_node(node)
    replacement_is_announced(job, node)
    job.wait_until(lambda: [3, PER_START] in [member[:2] for member in job.members()], "worker 3 on the fifth node")
    small_cluster.run("scancel", re.findall(rf"node {node} is lost; job (\d+)", job.output)[0])
    job.wait_until(lambda: [3, 2 * PER_START] in [member[:2] for member in job.members()], "its second replacement")
    assert not (job.run_dir / "stop.json").exists()
    small_cluster.run("scancel", job.number)
    job.wait_for_end()


def test_a_server_that_does_not_come_back_ends_the_run_with_one_line(small_cluster: Cluster, tmp_path: Path) -> None:
    args = f"{ENDLESS} --servers 2 --backup-workers 0 --reconnect-timeout-s 30"
    job = small_cluster.submit("breakout_64nodes.sh", tmp_path, "--nodes=5", args=args)
    job.wait_for_commits(10)
    small_cluster.kill_node(job.nodes()[1])
    end = job.wait_for_end()
    assert (end["JobState"], end["ExitCode"]) == ("FAILED", "1:0"), job.output
    assert "server 1 did not come within 30 s" in job.output.splitlines()[-1]
    assert list((job.run_dir / "checkpoints").glob("step-*/manifest.json"))


def test_the_loss_of_the_first_node_requeues_the_job_which_resumes(small_cluster: Cluster, tmp_path: Path) -> None:
    job = small_cluster.submit(
        "breakout_64nodes.sh", tmp_path, "--nodes=3", args=f"{ENDLESS} --servers 1 --backup-workers 0"
    )
    job.wait_for_commits(10)
    small_cluster.kill_node(job.nodes()[0])
    job.wait_until(lambda: "first_node_lost" in told(job), "a rank to requeue the job")
    before = job.commits()[-1]["step"]
    job.wait_for_life(2)
    job.wait_until(lambda: job.commits()[-1]["step"] > before, "steps of the second life")
    small_cluster.run("scancel", job.number)
    job.wait_for_end()
    first, second = job.lives()
    assert "ended" not in first
    assert second["topology"]["restart_count"] == 1
