"""The committed Slurm scripts on a real Slurm, with a small game in place of Breakout."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path

from dba3c.runs.ending import failures
from launch.cli.sbatch import SlurmShape, script_text
from tests.cluster.conftest import NODES, Cluster, Job

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = "--total-frames 1000000000 --stop-score 1000000"
SMALL_STEPS = "--rollout-length 5"


def of_kind(job: Job, role: str, kind: str) -> list[dict]:
    return [record for record in job.records(f"metrics/{role}-0.jsonl") if record["kind"] == kind]


def films(job: Job) -> list[str]:
    """What the recorder says of each game that it filmed, or could not film."""
    said = [record["message"] for record in of_kind(job, "recorder", "event") if record["event"] == "recording"]
    return [line for line in said if "film" in line and "gave up" not in line]


def test_the_64_node_script_trains_with_backup_workers_and_frees_its_nodes(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("breakout_64nodes.sh", tmp_path, args=f"{SMALL_STEPS} --total-frames 14000 --lanes 2")
    end = job.wait_for_end()
    assert end["JobState"] == "COMPLETED", job.output
    assert "64 = 64 workers (60 gradients + 4 backup), 20 servers beside workers" in job.output
    assert "frames trained on" in job.output
    commits = job.commits()
    assert len(commits) >= 20
    assert {len(commit["members"]) for commit in commits} == {60}
    assert len(list((job.run_dir / "metrics").glob("worker-*.jsonl"))) == 64 * 2  # a file for each lane
    assert len(list((job.run_dir / "metrics").glob("server-*.jsonl"))) == 20
    assert list((job.run_dir / "checkpoints").glob("step-*/manifest.json"))
    assert job.lives()[0]["ended"]["outcome"] == "finished"


def test_the_paper_s_71_nodes(cluster: Cluster, tmp_path: Path) -> None:
    args = f"{SMALL_STEPS} {ENDLESS} --checkpoint-every-steps 10 --evaluation-games 2 --recording-every 1"
    job = cluster.submit("dba3c_71nodes_paper.sh", tmp_path, args=args)
    # Both take the newest checkpoint when they come to it: the run goes on until they have.
    job.wait_until(lambda: bool(of_kind(job, "evaluator", "evaluation")), "an evaluation of a checkpoint")
    job.wait_until(lambda: bool(films(job)), "the recorder's word on a film")
    cluster.run(sys.executable, "-m", "launch", "stop", str(job.run_dir), cwd=ROOT)
    end = job.wait_for_end()
    assert end["JobState"] == "COMPLETED", job.output
    assert "71 = 4 servers + 1 evaluator + 1 recorder + 65 workers (60 gradients + 5 backup)" in job.output
    assert {len(commit["members"]) for commit in job.commits()} == {60}
    evaluation = of_kind(job, "evaluator", "evaluation")[0]
    assert evaluation["games"] == 2
    assert evaluation["checkpoint_step"] % 10 == 0
    if importlib.util.find_spec("pygame"):  # what CartPole is drawn with
        assert "filmed a game" in films(job)[0]
        assert list((job.run_dir / "videos").glob("step-*.mp4"))
    helpers = {f"{failure.role} {failure.rank}" for failure in failures(job.run_dir)}
    assert not helpers & {"evaluator 0", "recorder 0"}, job.output


def test_the_time_limit_s_warning_checkpoints_requeues_and_the_next_life_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    limit = ("--nodes=6", "--time=8", "--signal=B:USR1@360")
    job = cluster.submit("breakout_64nodes.sh", tmp_path, *limit, args=f"{ENDLESS} --servers 2 --backup-workers 1")
    job.wait_until(lambda: "requeueing" in job.output, "the requeue before the limit")
    first_life = job.newest_step()
    job.wait_for_life(2)
    job.wait_until(lambda: job.newest_step() > first_life + 2, "steps of the second life")
    cluster.run("scancel", job.number)
    job.wait_for_end()
    first, second = job.lives()[:2]
    assert first["ended"] == {**first["ended"], "outcome": "stopped", "reason": "SIGUSR1 at the Slurm job"}
    assert second["topology"]["restart_count"] == 1
    assert second["ended"]["outcome"] == "stopped"  # scancel, too, leaves a checkpoint
    steps = [commit["step"] for commit in job.commits()]
    assert steps == list(range(len(steps)))  # nothing twice, nothing left out


def test_a_job_that_slurm_preempts_checkpoints_and_goes_on_in_its_next_life(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("breakout_64nodes.sh", tmp_path, "--nodes=6", args=f"{ENDLESS} --servers 2 --backup-workers 1")
    job.wait_for_commits(10)
    urgent = cluster.run("sbatch", "--partition=urgent", f"--nodes={NODES}", "--output=/dev/null", "--wrap=true")
    job.wait_until(lambda: "ended" in job.lives()[0], "the checkpoint, for which Slurm gives a while")
    first_life = job.newest_step()
    job.wait_for_life(2)
    assert f"preempted JobId={job.number} has been requeued" in cluster.controller_log()
    assert "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", urgent.split()[-1])
    job.wait_until(lambda: job.newest_step() > first_life + 2, "steps of the second life")
    cluster.run("scancel", job.number)
    job.wait_for_end()
    first, second = job.lives()[:2]
    assert first["ended"]["outcome"] == "stopped"
    assert "SIGTERM" in first["ended"]["reason"]
    assert second["topology"]["restart_count"] == 1
    steps = [commit["step"] for commit in job.commits()]
    assert steps == list(range(len(steps)))  # nothing twice, nothing left out


def test_a_job_that_ends_within_the_grace_of_its_preemption_goes_on_all_the_same(
    small_cluster: Cluster, tmp_path: Path
) -> None:
    where = ("--partition=graceful", "--nodes=5")
    job = small_cluster.submit(
        "breakout_64nodes.sh", tmp_path, *where, args=f"{ENDLESS} --servers 2 --backup-workers 1"
    )
    job.wait_for_commits(10)
    urgent = ("--partition=urgent", "--nodes=5", "--exclusive", "--output=/dev/null", "--wrap=true")
    small_cluster.run("sbatch", *urgent)
    job.wait_until(
        lambda: "requeueing" in job.output, "the end of the first life, which Slurm would take for the job's"
    )
    first_life = job.newest_step()
    job.wait_for_life(2)
    job.wait_until(lambda: job.newest_step() > first_life + 2, "steps of the second life")
    small_cluster.run("scancel", job.number)
    assert job.wait_for_end()["JobState"] == "CANCELLED"
    assert "SIGTERM" in job.lives()[0]["ended"]["reason"]


def test_a_job_that_is_cancelled_between_the_limit_s_warning_and_its_end_does_not_come_back(
    small_cluster: Cluster, tmp_path: Path
) -> None:
    args = f"{ENDLESS} --servers 2 --backup-workers 1"
    job = small_cluster.submit("breakout_64nodes.sh", tmp_path, "--nodes=5", args=args)
    job.wait_for_commits(5)
    small_cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    job.wait_until(lambda: "SIGUSR1: asking" in job.output, "the warning")
    small_cluster.run("scancel", job.number)
    assert job.wait_for_end()["JobState"] == "CANCELLED"
    job.wait_until(lambda: "cancelled since the warning: not requeued" in job.output, "the script's last word")
    (life,) = job.lives()
    assert life["ended"]["outcome"] == "stopped"


def test_bad_input_fails_the_job_and_says_why(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(
        "breakout_64nodes.sh", tmp_path, "--nodes=2", preset="NoSuchGame-v0", args="--servers 1 --backup-workers 0"
    )
    end = job.wait_for_end()
    assert end["JobState"] == "FAILED"
    assert "NoSuchGame" in job.output


def test_a_job_that_gets_nothing_of_its_submitter_s_environment_trains(cluster: Cluster, tmp_path: Path) -> None:
    """``sbatch --export=NONE``, the default of some sites: all that the script knows is what `.venv` sets. It is
    of a shape of one's own, without servers."""
    shape = SlurmShape(preset="CartPole-v1", nodes=3, cpus_per_task=2, exchange="majority", backup_workers=1)
    script = tmp_path / "job.sh"
    script.write_text(script_text(shape, ()))
    small = cluster.small(script.name, tmp_path, "--total-frames 2000")
    small |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in small.items())
    activate.write_text(f"source {shlex.quote(sys.prefix)}/bin/activate\n{exports}")
    said = cluster.run("sbatch", "--export=NONE", str(script), cwd=tmp_path)
    job = Job(cluster, said.split()[-1], tmp_path)
    assert job.wait_for_end()["JobState"] == "COMPLETED", job.output
    assert job.lives()[0]["ended"]["outcome"] == "finished", job.output
    exchange = json.loads((job.run_dir / "config.json").read_text())["exchange"]
    assert [exchange[name] for name in ("exchange", "num_workers", "num_backup_workers")] == ["majority", 3, 1]


def test_central_inference_is_a_heterogeneous_job_whose_parts_deal_several_learners_alike(
    cluster: Cluster, tmp_path: Path
) -> None:
    args = "--total-frames 3000 --batch-unrolls 8 --unroll-length 5 --learners 2 --exchange allreduce"
    sizes = ("--nodes=2", "--cpus-per-task=4", ":", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2")
    job = cluster.submit("central_inference.sh", tmp_path, *sizes, args=args)
    job.wait_for_end()
    assert "6 = 2 learners + 4 actors" in job.output
    assert job.lives()[0]["cores"] == 2 * 4 + 4 * 2
    assert json.loads((job.run_dir / "config.json").read_text())["environment"]["env_threads"] == 2  # an actor's
    assert job.lives()[0].get("ended", {}).get("outcome") == "finished", job.output
    assert len(list((job.run_dir / "metrics").glob("learner-*.jsonl"))) == 2
    assert len(list((job.run_dir / "metrics").glob("actor-*.jsonl"))) == 4


def test_eight_nodes_at_100_mbit_train(slow_network: Cluster, tmp_path: Path) -> None:
    args = f"{SMALL_STEPS} --total-frames 5000 --servers 2 --backup-workers 1"
    job = slow_network.submit("breakout_64nodes.sh", tmp_path, "--nodes=8", args=args)
    end = job.wait_for_end()
    assert end["JobState"] == "COMPLETED", job.output
    assert {len(commit["members"]) for commit in job.commits()} == {7}
    published = [json.loads(path.read_text()) for path in (job.run_dir / "rendezvous").glob("*.json")]
    addresses = {each["host"] for each in published if "host" in each}  # some say only that they have left
    assert addresses == {"10.78.0.1", "10.78.0.2"}
