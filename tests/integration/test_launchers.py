"""Real torchrun, mpirun and horovodrun start the ranks of a real run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from dba3c.errors import RUN_ENDED_BROKEN_EXIT
from dba3c.roles import PER_START
from dba3c.runs.files import checkpoint_steps
from dba3c.runs.folder import RunFolder
from tests.integration.runs import records
from tests.ports import free_port
from tests.waiting import wait_until

BIN = Path(sys.executable).parent
TRAIN = ["train", "CartPole-v1", "--servers", "1", "--envs-per-worker", "2", "--total-frames", "2000"]
ENDLESS = ["--total-frames", "1000000000", "--stop-score", "1000000", "--checkpoint-every-steps", "5"]
AS_ROOT = ["--allow-run-as-root", "--oversubscribe"]  # which numbers local ranks out of order
AS_TORCHRUN_SAYS = {"RANK": "RANK", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "DBA3C_LAUNCH_ID": "one"}
WITH_A_SERVER = "--servers 1 --envs-per-worker 2 --gradients 1"
NO_CHECKPOINT_BEFORE_ITS_END = "--checkpoint-every-steps 1000000"
LAUNCHERS = {
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node", "3", "--no-python", "dba3c"],
    "mpirun": ["mpirun", *AS_ROOT, "-n", "3", str(BIN / "dba3c")],
    "horovodrun": ["horovodrun", "--gloo", "-np", "3", "-H", "localhost:3", str(BIN / "dba3c")],
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_s_ranks_train_together(name: str, tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [*LAUNCHERS[name], *TRAIN]
    (tmp_path / "launch.py").write_text("raise SystemExit('a file of the user, called like a package of ours')\n")
    if shutil.which(command[0], path=environ["PATH"]) is None:
        pytest.skip(f"{command[0]} is not installed")
    answer = subprocess.run(
        command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
    )
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said
    assert "3 = 1 server + 2 workers (2 gradients + 0 backup)" in said
    (run_dir,) = (tmp_path / "runs").iterdir()
    (life,) = json.loads((run_dir / "meta.json").read_text())["lives"]
    assert life["launcher"] == name
    assert life["ended"]["outcome"] == "finished"
    lines = (run_dir / "audit" / "commits.jsonl").read_text().splitlines()
    members = [record["members"] for record in map(json.loads, lines) if record["kind"] == "commit"]
    assert members
    assert all(len(step) == 2 for step in members)


def commits(run_dir: Path) -> list[list[list[int]]]:
    """Members (worker, incarnation, …) of each step so far."""
    path = run_dir / "audit" / "commits.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [record["members"] for record in map(json.loads, lines) if record["kind"] == "commit"]


class Ranks:
    """Three ranks of one launch, started one by one.

    Args:
        shape: words of `dba3c train`, after those that make it endless.
        environ: what their launcher sets for each, with RANK for its number.
    """

    def __init__(self, folder: Path, shape: str = WITH_A_SERVER, environ: Mapping[str, str] = AS_TORCHRUN_SAYS) -> None:
        self.folder, self.run_dir, self.shape, self.environ = folder, folder / "run", shape.split(), environ
        self.running = [self.start(rank) for rank in range(3)]

    def start(self, rank: int) -> subprocess.Popen[bytes]:
        command = [BIN / "dba3c", *TRAIN[:2], *ENDLESS, *self.shape, "--run-dir", self.run_dir]
        own = {name: value.replace("RANK", str(rank)) for name, value in self.environ.items()}
        with (self.folder / f"rank-{rank}.log").open("a") as log:
            return subprocess.Popen(
                command, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, rank: int) -> None:
        self.running[rank].kill()
        self.running[rank].wait(20)

    def kill_pod(self, rank: int) -> None:
        """All its processes at once: the launcher must not see the others die, nor they its death."""
        launcher = psutil.Process(self.running[rank].pid)
        launcher.suspend()
        for process in launcher.children(recursive=True):
            process.kill()
        self.kill(rank)

    def end(self) -> None:
        self.running[0].send_signal(signal.SIGINT)
        codes = [rank.wait(90) for rank in self.running]
        assert codes == [0, 0, 0], (self.folder / "rank-0.log").read_text()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.running:
            rank.kill()
            rank.wait(20)


def test_a_rank_that_dies_costs_only_itself_and_rejoins_as_a_new_incarnation(tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        run_dir = ranks.run_dir
        wait_until(lambda: any(member[0] == 1 for step in commits(run_dir) for member in step), "worker 1 to take part")
        ranks.kill(2)
        before = len(commits(run_dir))
        wait_until(lambda: len(commits(run_dir)) > before + 20, "steps without the dead rank")
        ranks.running[2] = ranks.start(2)
        wait_until(
            lambda: any(m[:2] == [1, PER_START] for step in commits(run_dir) for m in step), "worker 1 to come back"
        )
        ranks.end()


@pytest.mark.timeout(240)
def test_a_learner_whose_rank_is_killed_ends_with_a_checkpoint(tmp_path: Path) -> None:
    """mpirun kills its ranks half a second after it has told them to end."""
    shape = f"--mode central --envs-per-actor 2 --batch-unrolls 4 --unroll-length 5 {NO_CHECKPOINT_BEFORE_ITS_END}"
    with Ranks(tmp_path, shape) as ranks:
        metrics = ranks.run_dir / "metrics" / "learner-0.jsonl"
        wait_until(lambda: metrics.exists() and '"kind": "step"' in metrics.read_text(), "updates")
        roles = psutil.Process(ranks.running[0].pid).children(recursive=True)
        ranks.kill(0)
        psutil.wait_procs(roles, 60)
        assert not [role for role in roles if role.is_running()]
    told = json.loads((ranks.run_dir / "stop.json").read_text())
    assert (told["reason"], told["failed"]) == ("SIGTERM at learner 0", True)
    assert list((ranks.run_dir / "checkpoints").glob("step-*/manifest.json"))


@pytest.mark.timeout(240)
def test_a_run_that_ends_because_a_rank_has_lost_its_launcher_has_failed_though_it_is_saved(tmp_path: Path) -> None:
    with Ranks(tmp_path, f"--servers 2 --envs-per-worker 2 {NO_CHECKPOINT_BEFORE_ITS_END}") as ranks:
        wait_until(lambda: len(commits(ranks.run_dir)) > 20, "steps")
        before = len(commits(ranks.run_dir))
        ranks.kill(1)  # server 1's
        assert ranks.running[0].wait(90) == RUN_ENDED_BROKEN_EXIT
    ended = RunFolder(ranks.run_dir).life()["ended"]
    assert (ended["outcome"], ended["reason"]) == ("failed", "SIGTERM at server 1")
    assert max(checkpoint_steps(ranks.run_dir / "checkpoints")) >= before


@pytest.mark.timeout(240)
def test_an_all_reduce_of_which_one_rank_has_lost_its_launcher_has_failed_and_is_saved(tmp_path: Path) -> None:
    shape = "--exchange allreduce --envs-per-worker 2 --metrics-window-s 0.1"
    with Ranks(tmp_path, f"{shape} {NO_CHECKPOINT_BEFORE_ITS_END}") as ranks:

        def last_step() -> int:
            taken = [record["step"] for record in records(ranks.run_dir, "worker", 0) if record["kind"] == "step"]
            return max(taken, default=0)

        wait_until(lambda: last_step() > 20, "steps")
        ranks.kill(1)
        assert ranks.running[0].wait(90) == RUN_ENDED_BROKEN_EXIT
    ended = RunFolder(ranks.run_dir).life()["ended"]
    assert (ended["outcome"], ended["reason"]) == ("failed", "SIGTERM at worker 1")
    assert max(checkpoint_steps(ranks.run_dir / "checkpoints")) >= last_step()


@pytest.mark.timeout(240)
def test_what_the_chief_refuses_is_every_rank_s_last_line_at_once(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {}, launch_id="an earlier one").release()
    with Ranks(tmp_path) as ranks:
        # Each long before --join-timeout-s, which is 300 s.
        wait_until(lambda: all(rank.poll() is not None for rank in ranks.running), "the end of all ranks")
    assert [rank.returncode for rank in ranks.running] == [2, 2, 2]
    last_lines = {(tmp_path / f"rank-{rank}.log").read_text().splitlines()[-1] for rank in range(3)}
    (last_line,) = last_lines
    assert last_line.startswith(
        f"dba3c: {tmp_path}/run already holds a run: resume it (--resume), or choose another folder"
    )


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["0", "1"])
def test_ranks_of_two_torchruns_resume_together_whichever_has_lost_its_rank(lost: str, tmp_path: Path) -> None:
    """Each counts the restarts that its own ranks have caused."""
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    address = f"127.0.0.1:{free_port()}"
    meet = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-id", "j"]
    run_dir = tmp_path / "run"
    ours = ["--no-python", "dba3c", *TRAIN[:-2], *ENDLESS, "--run-dir", str(run_dir)]
    command = ["torchrun", *meet, "--nproc-per-node", "1", "--max-restarts", "2", *ours]

    def lives() -> list[dict[str, Any]]:
        return list(json.loads((run_dir / "meta.json").read_text())["lives"])

    with (tmp_path / "log").open("wb") as log:
        how: dict[str, Any] = {
            "cwd": tmp_path,
            "env": environ,
            "stdin": subprocess.DEVNULL,
            "stdout": log,
            "stderr": log,
        }
        torchruns = [subprocess.Popen(command, **how) for _ in range(2)]
    try:
        wait_until(lambda: run_dir.exists() and len(commits(run_dir)) > 20, "steps")
        ranks = [rank for torchrun in torchruns for rank in psutil.Process(torchrun.pid).children()]
        next(rank for rank in ranks if rank.environ().get("RANK") == lost).kill()
        wait_until(lambda: len(lives()) == 2, "a second life")
        before = len(commits(run_dir))
        wait_until(lambda: len(commits(run_dir)) > before + 5, "steps of the second life")
        assert {member[1] for step in commits(run_dir)[before:] for member in step} == {PER_START}
        assert len({life["launch_id"] for life in lives()}) == len(lives()) == 2
        for torchrun in torchruns:
            torchrun.send_signal(signal.SIGTERM)
        for torchrun in torchruns:
            torchrun.wait(120)
    finally:
        for torchrun in torchruns:
            torchrun.kill()
            torchrun.wait(20)


@pytest.mark.timeout(400)
def test_a_pod_of_the_chief_that_is_restarted_goes_on_with_the_run(tmp_path: Path) -> None:
    """As Kubernetes does it: restartPolicy OnFailure, the same index, the same Job."""
    pod = {"JOB_COMPLETION_INDEX": "RANK", "DBA3C_WORLD_SIZE": "3", "DBA3C_CHIEF_ADDRESS": "127.0.0.1"}
    with Ranks(tmp_path, environ={**pod, "DBA3C_LAUNCH_ID": "uid-of-the-job"}) as ranks:
        run_dir = ranks.run_dir
        wait_until(lambda: len(commits(run_dir)) > 20, "steps")
        ranks.kill_pod(0)
        before = len(commits(run_dir))
        ranks.running[0] = ranks.start(0)
        wait_until(lambda: len(commits(run_dir)) > before + 20, "steps with the second chief", timeout_s=200)
        lives = json.loads((run_dir / "meta.json").read_text())["lives"]
        assert [life["launch_id"] for life in lives] == ["uid-of-the-job"] * 2
        ranks.end()
