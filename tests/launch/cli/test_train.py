"""A world of one rank trains as on one machine; a launch that its launcher starts again goes on with its run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from dba3c.runs.folder import RunFolder
from launch import rank, running
from launch.cli import runs as commands
from launch.cluster.launchers import detect

ROOT = Path(__file__).parents[3]
SHELL = {  # of `srun --cpus-per-task=4 --pty bash`, Slurm 22.05
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_NPROCS": "1",
    "SLURM_NNODES": "1",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_CPUS_PER_TASK": "4",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.0.1",
    "SLURM_SRUN_COMM_HOST": "10.1.0.1",
    "SLURM_PTY_PORT": "38161",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "a",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "37231",
}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_NAMESPACE": "x@1"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What was given to the run of one machine."""
    told: dict[str, Any] = {}

    def train(config: TrainConfig, run_dir: Path, **options: Any) -> tuple[int, str]:
        told.update(options, config=config, run_dir=run_dir)
        return 0, "done"

    monkeypatch.setattr(running, "train", train)
    monkeypatch.chdir(tmp_path)
    return told


def under(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("environ", [SHELL, MPIRUN, TORCHRUN])
def test_the_only_rank_trains_as_on_one_machine(
    environ: dict[str, str], trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    under(monkeypatch, environ)
    assert commands.train(["breakout", "--servers", "2", "--workers", "3"]) == 0
    assert (trained["config"].exchange.num_servers, trained["config"].exchange.num_workers) == (2, 3)


def test_an_interactive_shell_trains_on_the_cores_it_was_given(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.local.resources.affinity_cores", lambda: list(range(64)))
    monkeypatch.setattr("launch.local.resources.cgroup_quota_cores", lambda: None)
    under(monkeypatch, SHELL)
    assert commands.train(["breakout"]) == 0
    of_four_cores = trained["config"].environment.lanes
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "16")
    assert commands.train(["breakout"]) == 0
    assert trained["config"].environment.lanes > of_four_cores > 1
    assert trained["config"].run.run_dir is None  # a folder for each command typed in the shell


@pytest.mark.parametrize(("terminal", "group", "ranks"), [(True, 7, 1), (False, 7, 8), (True, 5, 8)])
def test_the_shell_that_is_left_of_several_is_one_rank_and_what_srun_itself_starts_there_is_not(
    terminal: bool, group: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an srun in that shell the tasks have its SLURM_PTY_PORT too; `srun --pty dba3c train` leads its session."""
    of_eight = {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "8"}
    pmi = {"PMI_RANK": "0", "PMI_SIZE": "8"}
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)
    monkeypatch.setattr(os, "getpgrp", lambda: group)
    monkeypatch.setattr(os, "getsid", lambda pid: 5)
    for environ in ({**SHELL, **of_eight}, {**SHELL, **of_eight, **pmi}):
        place = detect(environ)
        assert (place.launcher, place.rank, place.world_size) == ("srun", 0, ranks)


def test_colocated_servers_in_an_array_s_smallest_task_stay_in_its_rank(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    under(monkeypatch, SHELL)
    told: list[str] = []
    monkeypatch.setattr(rank, "run_rank", lambda config, place, shape, *_, **__: told.append(shape.arithmetic()))
    commands.train(["breakout", "--servers", "1", "--colocated-servers"])
    assert told == ["1 = 1 worker (1 gradient + 0 backup), 1 server beside workers"]
    assert trained == {}


def test_colocated_servers_without_a_launcher_are_told_where_they_belong(trained: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--colocated-servers is for ranks") as refused:
        commands.train(["CartPole-v1", "--colocated-servers"])
    assert "\n" not in str(refused.value)
    assert trained == {}


@pytest.mark.parametrize("environ", [SHELL, {}])
def test_servers_of_nobody_are_refused_on_one_machine_too(
    environ: dict[str, str], trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    under(monkeypatch, environ)
    with pytest.raises(UserError, match="num_servers: an option of exchange servers or async only"):
        commands.train(["breakout", "--mode", "central", "--servers", "4", "--actors", "3"])
    assert commands.train(["breakout", "--mode", "central", "--actors", "3"]) == 0


def test_what_sums_over_the_launcher_s_ranks_remains_a_rank(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    under(monkeypatch, MPIRUN)
    monkeypatch.setattr(rank, "run_rank", lambda *_, **__: 0)
    assert commands.train(["CartPole-v1", "--exchange", "allreduce", "--collective-backend", "mpi"]) == 0
    assert trained == {}


def test_torchrun_s_only_rank_started_again_goes_on_with_its_run(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    under(monkeypatch, TORCHRUN)
    commands.train(["breakout"])
    run_dir = trained["run_dir"]
    assert (str(run_dir), trained["resume"]) == ("runs/breakout-a-localhost-37231", False)
    shape = {"run_name": trained["run_name"]}
    RunFolder.create(run_dir, {}, launch_id=trained["launch_id"], topology=shape).release()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    commands.train(["breakout"])
    assert (trained["run_dir"], trained["resume"]) == (run_dir, True)


WHAT_TAKES_SECONDS = {"torch", "numpy", "gymnasium", "ale_py", "scipy", "matplotlib", "tensorboard"}
ASKED_FROM = {
    "the command line": 'from launch.cli import main; main.main(["train", "breakout", "--run-dir", "run"])',
    "Python": 'import dba3c; dba3c.train("breakout", run_dir="run")',
}


@pytest.mark.parametrize("place", ASKED_FROM)
def test_the_first_line_says_what_is_waited_for_before_anything_that_takes_seconds_is_imported(
    place: str, tmp_path: Path
) -> None:
    program = f"""
import sys
from launch import running
def said(*_):
    print(*sorted({WHAT_TAKES_SECONDS} & sys.modules.keys()), len(sys.modules) > 100)
    raise SystemExit
running.check_machine = said  # what comes next
{ASKED_FROM[place]}
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    first, imported = done.stdout.splitlines()
    assert first == "ALE/Breakout-v5 in run: looking whether it can be trained here, which takes seconds"
    assert imported == {"the command line": "True", "Python": "numpy True"}[place], done.stderr


def test_resume_without_a_folder_finds_the_newest_run_of_this_environment_not_of_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (replace_options(TrainConfig(), env_id=f"CartPole-v{version}") for version in (0, 1))
    made = []
    for at_s, config in enumerate((first, first, second)):
        folder = RunFolder.create(commands.run_dir_of(config, goes_on=False), config.to_json(), launch_id="1")
        folder.release()
        os.utime(folder.path / "config.json", (at_s, at_s))
        made.append(folder.path)
    assert [commands.run_dir_of(config, goes_on=True) for config in (first, second)] == [
        path.relative_to(tmp_path) for path in made[1:]
    ]
    with pytest.raises(UserError, match="nothing to resume: no run of other:CartPole"):
        commands.run_dir_of(replace_options(TrainConfig(), env_id="other:CartPole"), goes_on=True)
