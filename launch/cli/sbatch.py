"""``dba3c sbatch PRESET --nodes 64``: prints a Slurm script. The text is a pure function of these words.

The files under ``slurm/`` are its output. They hold no hyperparameters: those are the preset's, and what a script
passes on is the shape of the run. The environment variables DBA3C_PRESET, DBA3C_ARGS, DBA3C_RUN_DIR and DBA3C_VENV
change a job without editing its file.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dba3c.errors import UserError
from launch.cli.configuration import WITHOUT_SERVERS, fit_config, said_of_samples
from launch.cli.options import parse, parse_train
from launch.cluster.launchers import LaunchPlace
from launch.cluster.topology import Topology, fit
from launch.slurm.job import run_job
from param_servers.config import check_options, option

LEARNER_CPUS = 24
SERVER_RETURNS_S = 900
"""Slurm gives a dead node up after `SlurmdTimeout`, 300 s by default; only then its replacement is asked for."""
LEAST_TRAINING_S = 300
"""Of a life: Slurm may warn a minute early, and starting 64 ranks takes minutes."""


@dataclass(frozen=True, kw_only=True)
class SlurmShape:
    """Print a Slurm script: dba3c sbatch PRESET [OPTIONS] > job.sh"""

    preset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET")] = "breakout"
    """What to train: a preset of `dba3c train`, or an environment."""

    nodes: int = option(64, least=1)
    """Nodes of the job."""

    tasks_per_node: int = option(1, least=1)
    """Ranks on each node."""

    cpus_per_task: int = option(12, least=1)
    """Cores of each rank."""

    exchange: Literal["servers", "async", "allreduce", "majority"] = "servers"
    """How gradients travel. allreduce and majority have no servers."""

    servers: int | None = None
    """Servers, each with a shard of the parameters; without it 4 (of few ranks half)."""

    colocated_servers: bool = False
    """Servers share the ranks of workers, which are then all nodes."""

    backup_workers: int = 0
    """Workers whose gradient an update need not wait for."""

    evaluators: int = option(0, least=0, most=1)
    """1: a rank plays full games with each new checkpoint."""

    recorders: int = option(0, least=0, most=1)
    """1: a rank films a game of each n-th checkpoint."""

    learners: int = 0
    """With these: central inference, as a heterogeneous job of learners (a node each) and --nodes nodes of actors."""

    learner_cpus: int | None = option(None, least=1)
    """Cores of each learner; without it 24."""

    time: str = "04:00:00"
    """Slurm's time limit; before it ends the run is checkpointed and the job requeued."""

    warning_s: int = option(300, least=1)
    """Seconds before the limit at which the checkpoint is asked for: the slowest stop and the requeue take as long."""

    name: str = ""
    """Job name; without it PRESET_Nnodes, N being --nodes."""

    account: str = ""
    """Slurm account; without it a line to fill in, or sbatch --account."""

    partition: str = ""
    """Slurm partition; without it a line to fill in, or sbatch --partition."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
        if self.servers == 0 and self.has_servers:
            raise UserError("--servers must be at least 1, got 0: --exchange allreduce and majority have none")
        if self.exchange != "servers" and self.learners:
            raise UserError(f"--exchange {self.exchange} is of workers: learners add up their gradients by allreduce")
        if not self.has_servers and not self.learners and (self.servers or self.colocated_servers):
            raise UserError(f"--servers and --colocated-servers: exchange {self.exchange} has no servers")
        if self.learners and self.servers:
            raise UserError(
                f"{self.topology().arithmetic()} leave no rank for {self.servers} servers: "
                "a heterogeneous job has learners and actors only"
            )
        if self.colocated_servers and self.learners:
            raise UserError("--colocated-servers without a server: a job with learners has none")
        if self.learner_cpus is not None and not self.learners:
            raise UserError("--learner-cpus without --learners")
        for name in ("name", "account", "partition"):
            if not getattr(self, name).isprintable():  # a new line would begin a command
                raise UserError(f"--{name} {getattr(self, name)!r} has characters that a script cannot have there")
        if "/" in self.name:
            raise UserError(f"--name {self.name!r}: the job's output would go to a folder that may not be there")
        refuse_short(self.time, self.warning_s)
        self.topology()

    @property
    def job_name(self) -> str:
        """Job name, also of the file under slurm/."""
        return self.name or f"{self.preset.split('/')[-1]}_{self.nodes}nodes"

    @property
    def has_servers(self) -> bool:
        return not self.learners and self.exchange not in WITHOUT_SERVERS

    @property
    def num_servers(self) -> int:
        """`servers`, or what stands for it."""
        if not self.has_servers:
            return 0
        if self.servers is not None:
            return self.servers
        ranks = self.nodes * self.tasks_per_node - self.evaluators - self.recorders
        return min(4, ranks if self.colocated_servers else max(1, ranks // 2))

    def topology(self) -> Topology:
        """The run's shape."""
        return fit(
            self.learners + self.nodes * self.tasks_per_node,
            servers=self.num_servers,
            learners=self.learners,
            backup_workers=self.backup_workers,
            evaluators=self.evaluators,
            recorders=self.recorders,
            colocated_servers=self.colocated_servers,
            asynchronous=self.exchange == "async",
            started_by=self.started_by,
        )

    @property
    def started_by(self) -> str:
        """What starts the ranks, for messages."""
        return f"{self.nodes} nodes × {self.tasks_per_node}"


def refuse_short(limit: str, warning_s: int) -> None:
    """Raise UserError for what Slurm would not take as a limit, and where a job would be warned before it has trained,
    and go round without end."""
    if limit.lower() in ("infinite", "unlimited"):
        return
    found = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", limit)
    if found is None:
        raise UserError(f"{limit!r} is no time limit of Slurm's: 90, 90:00, 1:30:00, 0-1, 0-1:30 or 0-1:30:00")
    days, numbers = found[1], [int(number) for number in found[2].split(":")]
    if days:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:  # minutes, minutes:seconds or hours:minutes:seconds
        hours, minutes, seconds = {1: [0, *numbers, 0], 2: [0, *numbers], 3: numbers}[len(numbers)]
    limit_s = ((24 * int(days or 0) + hours) * 60 + minutes) * 60 + seconds
    if 0 < limit_s < warning_s + LEAST_TRAINING_S:  # 0: none
        raise UserError(
            f"a job of {limit} is warned {warning_s} s before its end: give it {LEAST_TRAINING_S} s more than that"
        )


def script_text(shape: SlurmShape, words: Sequence[str]) -> str:
    """The whole Slurm script, at most 50 lines. `words`: of `dba3c sbatch`, by which the shape was asked for."""
    about = [
        f"Printed by: {shlex.join(['dba3c', 'sbatch', *words])}",
        *_arithmetic_lines(shape),
        "Submit from the folder that holds .venv, shared by all nodes: sbatch --account=A --partition=P THIS_FILE",
    ]
    request = partial(request_lines, time=shape.time, account=shape.account, partition=shape.partition)
    ranks = partial(request, nodes=shape.nodes, tasks_per_node=shape.tasks_per_node, cpus_per_task=shape.cpus_per_task)
    first = (
        partial(request, nodes=shape.learners, cpus_per_task=shape.learner_cpus or LEARNER_CPUS)
        if shape.learners
        else ranks
    )
    return job_text(
        about,
        first(name=shape.job_name),
        _start_lines(shape),
        warning_s=shape.warning_s,
        second_part=["#SBATCH hetjob", *ranks(), "#SBATCH --no-kill"] if shape.learners else [],
    )


def job_text(
    about: Sequence[str],
    what: Sequence[str],
    start: Sequence[str],
    *,
    warning_s: int,
    last_task: int | None = None,
    second_part: Sequence[str] = (),
) -> str:
    """What the job is about, what it asks Slurm for, how it ends, what it starts; `last_task`: of a job array."""
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in about),
        *what,
        *([] if last_task is None else [f"#SBATCH --array=0-{last_task}"]),
        f"#SBATCH --output=%x-{'%j' if last_task is None else '%A_%a'}.out",
        "#SBATCH --open-mode=append",
        "",
        f"# {warning_s} s before the limit: a checkpoint; the job goes on in its next life (docs/cluster.md).",
        f"#SBATCH --signal=B:USR1@{warning_s}",
        "#SBATCH --requeue",
        "# A lost node costs its workers, not the run, while enough of them are left.",
        "#SBATCH --no-kill",
        *second_part,
        "",
        "set -eu",
        'source "${DBA3C_VENV:-.venv}/bin/activate"',
        *start,
    ]
    return "\n".join(lines) + "\n"


def _arithmetic_lines(shape: SlurmShape) -> list[str]:
    """Ranks to roles, and samples to an update."""
    topology = shape.topology()
    said = parse_train([shape.preset])
    if shape.learners:
        several = {"exchange": "allreduce", "num_workers": shape.learners} if shape.learners > 1 else {}
        replace(said, given={**said.given, "mode": "central", **several}).config(shape.cpus_per_task)  # or refuses it
        return [topology.arithmetic()]
    config = said.config(1)
    if config.central.mode == "central":
        raise UserError(
            f"{shape.preset} trains by central inference: with --learners 1 a node of its own has the learner, and "
            f"{shape.nodes} nodes × {shape.tasks_per_node} = {shape.nodes * shape.tasks_per_node} ranks are its actors"
        )
    said = parse_train([shape.preset, *shlex.split(_of_workers(shape))])
    config, _ = fit_config(said, LaunchPlace(launcher=shape.started_by, world_size=topology.ranks), shape.cpus_per_task)
    cores = f"{shape.nodes} nodes × {shape.tasks_per_node * shape.cpus_per_task} cores: "
    return [cores + topology.arithmetic(), *said_of_samples(said, config)]


def request_lines(
    name: str = "",
    *,
    nodes: int,
    cpus_per_task: int,
    time: str,
    tasks_per_node: int = 1,
    account: str = "",
    partition: str = "",
) -> list[str]:
    """What a job, or one part of a heterogeneous one, asks for; without account and partition lines to fill in."""
    return [
        f"#SBATCH --account={shlex.quote(account)}" if account else "##SBATCH --account=",
        f"#SBATCH --partition={shlex.quote(partition)}" if partition else "##SBATCH --partition=",
        *([f"#SBATCH --job-name={shlex.quote(name)}"] if name else []),
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={tasks_per_node}",
        f"#SBATCH --cpus-per-task={cpus_per_task}",
        f"#SBATCH --time={time}",
    ]


def _others(shape: SlurmShape) -> str:
    # zeros are said, too: a preset may have some, also one that is chosen when the script is submitted
    return f"--evaluators {shape.evaluators} --recorders {shape.recorders}"


def _of_workers(shape: SlurmShape) -> str:
    """Of `dba3c train`, for a run without learners."""
    exchange = "" if shape.exchange == "servers" else f"--exchange {shape.exchange} "
    colocated = "--colocated-servers " if shape.colocated_servers else ""
    servers = f"--servers {shape.num_servers} {colocated}--reconnect-timeout-s {SERVER_RETURNS_S} "
    backup = f"--backup-workers {shape.backup_workers} "
    return exchange + (servers if shape.has_servers else "") + backup + _others(shape)


def _of_learners(shape: SlurmShape) -> str:
    several = " --exchange allreduce" if shape.learners > 1 else ""
    # the learner, which writes the configuration, has other cores than the actors
    actors = '--env-threads "${SLURM_CPUS_PER_TASK_HET_GROUP_1:?}"'
    return f"--mode central --learners {shape.learners}{several} {actors} {_others(shape)}"


def _start_lines(shape: SlurmShape) -> list[str]:
    roles = _of_learners(shape) if shape.learners else _of_workers(shape)
    train = f'dba3c train "${{DBA3C_PRESET:-{shape.preset}}}"'
    return [
        "run_dir=${DBA3C_RUN_DIR:-runs/$SLURM_JOB_NAME-$SLURM_JOB_ID}",
        'exec dba3c job --run-dir "$run_dir" -- \\',
        f"    {train} {roles} ${{DBA3C_ARGS:-}}",
    ]


def sbatch(words: Sequence[str]) -> int:
    """``dba3c sbatch PRESET [OPTIONS]``: print the script."""
    sys.stdout.write(script_text(parse(SlurmShape, words, "dba3c sbatch"), words))
    return 0


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """What a Slurm script runs on its first node: dba3c job --run-dir RUN -- dba3c train ENV [OPTIONS]

    srun of all ranks, and the life of a job around it: lost nodes, the time limit, the requeue.
    """

    run_dir: Path
    """The run's folder."""

    nodes: int | None = option(None, least=1)
    """Run on the first N nodes, and give the others back; without it on all."""

    def __post_init__(self) -> None:
        check_options(self, UserError)


def job(words: Sequence[str]) -> int:
    """``dba3c job --run-dir RUN [--nodes N] -- COMMAND``"""
    split = list(words).index("--") if "--" in words else len(words)
    arguments, train = parse(JobArguments, words[:split], "dba3c job"), words[split + 1 :]
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError("dba3c job is what a Slurm script runs; there is no SLURM_JOB_ID here")
    if not train:
        raise UserError("what follows -- is the command of every rank: dba3c job --run-dir RUN -- dba3c train ENV")
    if any(re.match("--run[-_]dir(=|$)", word) for word in train):
        raise UserError("the script has a run folder of its own: say DBA3C_RUN_DIR, not --run-dir")
    return run_job(arguments.run_dir, train, arguments.nodes)
