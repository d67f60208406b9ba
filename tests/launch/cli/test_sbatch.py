"""Slurm scripts: what is committed is what the command prints, and srun gets what Slurm needs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from launch.cli.configuration import fit_config
from launch.cli.options import parse, parse_train
from launch.cli.sbatch import SlurmShape, sbatch, script_text
from launch.cluster.launchers import LaunchPlace
from launch.slurm.controller import ACT_TIMEOUT_S, REQUEUE_PAUSE_S, REQUEUE_TRIES, srun_command
from launch.slurm.job import LostNodes

SCRIPTS = sorted((Path(__file__).resolve().parents[3] / "slurm").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_committed_script_is_what_its_second_line_prints(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(script.read_text().splitlines()[1].removeprefix("# Printed by: "))
    assert words[:2] == ["dba3c", "sbatch"]
    assert sbatch(words[2:]) == 0
    assert capsys.readouterr().out == script.read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_short_sound_shell_without_hyperparameters(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) <= 50
    assert not any(word in text for word in ("learning", "entropy", "rollout", "discount", "--lr"))
    shellcheck = Path(sys.executable).with_name("shellcheck")
    command = [str(shellcheck), "--severity=warning", str(script)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == ""


def test_the_warning_leaves_time_for_the_slowest_clean_stop_and_the_requeue_after_it() -> None:
    requeue_s = REQUEUE_TRIES * ACT_TIMEOUT_S + (REQUEUE_TRIES - 1) * REQUEUE_PAUSE_S
    kill_wait_s = 30  # Slurm's own, after the limit
    assert SlurmShape().warning_s + kill_wait_s >= TrainConfig().exchange.timeouts.stop_s + requeue_s


def test_every_committed_script_is_there() -> None:
    assert [script.name for script in SCRIPTS] == [
        "breakout_64nodes.sh",
        "central_inference.sh",
        "dba3c_71nodes_paper.sh",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 1}, "1 nodes × 1 started 1 rank, but 1 server leaves none for a worker"),
        ({"nodes": 3, "evaluators": 1, "recorders": 1}, "3 ranks, but 1 server . 1 evaluator . 1 recorder leave none"),
        ({"evaluators": 2}, "evaluators must be at least 0 and at most 1, got 2"),
        ({"nodes": 4, "servers": 4}, "4 nodes × 1 started 4 ranks, but 4 servers leave none for a worker"),
        ({"nodes": 0}, "nodes must be at least 1"),
        ({"time": "00:03:00"}, "a job of 00:03:00 is warned 300 s before its end: give it 300 s more than that"),
        ({"time": "9:59"}, "a job of 9:59"),
        ({"time": "0-00:09"}, "a job of 0-00:09"),
        ({"time": "1-0", "warning_s": 86_400}, "a job of 1-0"),
        ({"servers": 0}, "--servers must be at least 1, got 0"),
        ({"learner_cpus": 7}, "--learner-cpus without --learners"),
        (
            {"nodes": 16, "learners": 1, "backup_workers": 4},
            r"17 ranks = 1 learner \+ 16 actors leave no worker, but the options ask for 4 backup workers",
        ),
        ({"colocated_servers": True, "servers": 65}, "65 servers beside 64 workers: at most one beside each worker"),
        ({"colocated_servers": True, "nodes": 16, "learners": 1}, "--colocated-servers without a server"),
        ({"name": "a/b"}, "--name 'a/b': the job's output would go to a folder"),
        ({"name": "x\ntouch /tmp/y"}, "--name .* has characters that a script cannot have there"),
        ({"account": "x\ny"}, "--account .* has characters that a script cannot have there"),
        ({"exchange": "allreduce", "servers": 4}, "exchange allreduce has no servers"),
        ({"exchange": "majority", "colocated_servers": True}, "exchange majority has no servers"),
        ({"exchange": "majority", "learners": 1}, "--exchange majority is of workers"),
        ({"nodes": 16, "learners": 1, "servers": 4}, r"17 = 1 learner \+ 16 actors leave no rank for 4 servers"),
    ],
)
def test_an_impossible_shape_prints_no_script(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SlurmShape(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exchange", "backup", "passed_on"),
    [
        ("allreduce", 0, "--exchange allreduce --backup-workers 0 "),
        ("majority", 2, "--exchange majority --backup-workers 2 "),
        ("async", 0, "--exchange async --servers 4 --reconnect-timeout-s 900 --backup-workers 0 "),
    ],
)
def test_a_script_of_another_exchange_passes_it_on_and_has_servers_only_where_it_has_some(
    exchange: Any, backup: int, passed_on: str
) -> None:
    shape = SlurmShape(preset="breakout_cluster", nodes=8, exchange=exchange, backup_workers=backup)
    text = script_text(shape, ())
    assert f':-breakout_cluster}}" {passed_on}--evaluators 0' in text
    workers = shape.topology().workers
    assert workers == (4 if exchange == "async" else 8)
    made_of = {
        "allreduce": "8 gradients + 0 backup",
        "majority": "6 gradients + 2 backup",
        "async": "each gradient is an update",
    }
    assert f"{workers} workers ({made_of[exchange]})" in text
    config, _ = fit_config(
        parse_train(["breakout_cluster", *passed_on.split()]), LaunchPlace(launcher="srun", world_size=8), cores=12
    )
    assert (config.exchange.exchange, config.exchange.num_workers) == (exchange, workers)


@pytest.mark.parametrize(("exchange", "message"), [("allreduce", "choose exchange majority"), ("async", "no backup")])
def test_backup_workers_of_an_exchange_without_are_refused_where_the_script_is_printed(
    exchange: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        script_text(SlurmShape(preset="breakout_cluster", nodes=8, exchange=exchange, backup_workers=2), ())


@pytest.mark.parametrize("learners", [0, 1, 2])
def test_an_environment_that_is_none_is_refused_where_its_script_is_printed(learners: int) -> None:
    """With learners it was printed, and the job failed on its nodes."""
    with pytest.raises(UserError, match="unknown environment NoSuchGame-v9"):
        script_text(SlurmShape(preset="NoSuchGame-v9", nodes=16, learners=learners), ())


@pytest.mark.parametrize("name", ["football/$(touch here)", "vizdoom/`touch here`", "football/a\ntouch here #"])
def test_no_script_holds_a_scenario_that_a_shell_would_run(name: str) -> None:
    with pytest.raises(UserError, match="no scenario can be called"):
        script_text(SlurmShape(preset=name, nodes=16), (name,))


def test_what_trains_by_central_inference_is_refused_without_a_learner_with_the_arithmetic() -> None:
    with pytest.raises(UserError, match=r"with --learners 1 .* 4 nodes × 2 = 8 ranks are its actors"):
        script_text(SlurmShape(preset="impala", nodes=4, tasks_per_node=2), ())


@pytest.mark.parametrize("limit", ["4h", "1:2:3:4", "-1:00", "1-", "", "8:00\n", "soon"])
def test_what_slurm_would_not_take_as_a_time_limit_is_refused_with_what_it_takes(limit: str) -> None:
    with pytest.raises(UserError, match="no time limit of Slurm's: 90, "):
        SlurmShape(time=limit)


@pytest.mark.parametrize("limit", ["10", "10:00", "00:10:00", "1-0", "0-1:30", "1-00:00:00", "infinite", "0"])
def test_a_time_limit_that_leaves_time_to_train_is_taken(limit: str) -> None:
    assert SlurmShape(time=limit).time == limit


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--nodes 16 --backup-workers 2 --evaluators 1",
        "--colocated-servers --servers 20",
        "dba3c_paper --nodes 16",
        "--nodes 16 --learners 1",
        "--nodes 16 --learners 2",
    ],
)
def test_the_command_of_a_script_makes_the_ranks_that_its_header_counts(words: str) -> None:
    """Where nothing was said of backup workers, the preset's own were in the run and not in the header."""
    shape = parse(SlurmShape, words.split(), "dba3c sbatch")
    ranks = shape.topology().ranks
    place = LaunchPlace(launcher="srun", world_size=ranks, tasks_per_node=(1,) * ranks)
    config, topology = fit_config(parse_train(train_words(shape)), place, cores=24)
    assert topology.arithmetic() == shape.topology().arithmetic()
    if shape.learners:  # whose chief has 24 cores, and the actors, for whom it says so, 12
        assert (config.environment.env_threads, config.central.envs_per_actor % 12) == (12, 0)


def train_words(shape: SlurmShape) -> list[str]:
    """What `dba3c train` is given by a script."""
    lines = script_text(shape, ()).partition('bin/activate"\n')[2]
    shell = lines.replace("exec dba3c ", "printf '%s\\n' ").replace("\\\n    dba3c train", "")
    environ = {"PATH": os.environ["PATH"], "SLURM_CPUS_PER_TASK_HET_GROUP_1": str(shape.cpus_per_task)}
    environ |= {"SLURM_JOB_NAME": "1", "SLURM_JOB_ID": "1"}
    said = subprocess.run(
        ["bash", "-euc", shell], env=environ, capture_output=True, text=True, check=True
    ).stdout.split()
    return said[said.index("--") + 1 :]


def test_account_and_partition_are_filled_in_when_given() -> None:
    text = script_text(SlurmShape(account="physics", partition="long", name="my run"), ())
    assert "\n#SBATCH --account=physics\n#SBATCH --partition=long\n#SBATCH --job-name='my run'\n" in text


def test_srun_gets_the_cores_of_a_task_and_the_first_nodes_only() -> None:
    environ = {"SLURM_CPUS_PER_TASK": "12", "SLURM_NTASKS_PER_NODE": "2"}
    command = srun_command(environ, ["dba3c", "train"], nodes=4)
    assert command[-5:] == ["--cpus-per-task=12", "--nodes=4", "--ntasks=8", "dba3c", "train"]
    assert "--no-kill" in command
    parts = {"SLURM_HET_SIZE": "2", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "24", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "12"}
    said = " ".join(srun_command({**parts, "SLURM_CPUS_PER_TASK": "24"}, ["dba3c", "train"]))
    first, _, second = said.removeprefix("srun ").partition(" : ")
    assert first.endswith("--het-group=0 --cpus-per-task=24 dba3c train")
    assert second.endswith("--het-group=1 --cpus-per-task=12 dba3c train") and "--no-kill" in second
    assert "--kill-on-bad-exit=0" in command


def test_ranks_get_the_script_s_environment_whatever_the_job_got_of_its_submitter_s() -> None:
    none = {"SLURM_EXPORT_ENV": "NONE", "SLURM_JOB_ID": "17"}  # what `sbatch --export=NONE` sets
    assert "--export=ALL" in srun_command(none, ["dba3c", "train"])
    assert "--export=ALL" in LostNodes(none, Path("run"), []).options("node2", "1:00:00", "")
