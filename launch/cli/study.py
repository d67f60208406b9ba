"""``dba3c study NAME`` runs a declared grid, here or as a Slurm job array; ``dba3c plot STUDY`` draws it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dba3c.errors import UserError
from launch.cli.options import parse
from launch.cli.study_runs import run_all, state_of, train, train_command

if TYPE_CHECKING:
    from dba3c.studies.study import Run, Study


@dataclass(frozen=True, kw_only=True)
class StudyArguments:
    """Run a study: dba3c study scaling --values 1 2 4 --seeds 3 -- --max-hours 0.5

    NAME is scaling, parameter_servers, stragglers, learning_curves, architectures or games. What follows -- goes to
    every `dba3c train`. Called again, it goes on where it was: finished runs are left alone, stopped and broken ones
    resumed.
    """

    name: Annotated[str, tyro.conf.Positional]
    """Which study."""

    into: Path | None = None
    """The study's folder; studies/NAME by default."""

    env: str = "ALE/Breakout-v5"
    """Environment or preset."""

    values: tuple[int, ...] = ()
    """Workers (scaling), servers (parameter_servers) or backup workers (stragglers) to try."""

    workers: int = 8
    """Workers, where they are not what is varied."""

    servers: int = 2
    """Servers, where they are not what is varied."""

    seeds: int = 0
    """How many seeds; 0: the study's own number."""

    slurm: bool = False
    """Declare the study and print a Slurm job array for it, one task a run; nothing is run."""

    task: int | None = None
    """Run one run of the study only, by its number."""

    list: bool = False
    """Say how far it is; nothing is run."""

    cpus_per_task: int = 12
    """--slurm: cores of each node."""

    time: str = "04:00:00"
    """--slurm: time limit of each run."""


def study(words: Sequence[str]) -> int:
    """dba3c study NAME [OPTIONS] [-- TRAIN OPTIONS]"""
    from dba3c.studies.study import Shape, build, load

    words = list(words)
    split = words.index("--") if "--" in words else len(words)
    arguments = parse(StudyArguments, words[:split], "dba3c study")
    folder = arguments.into or Path("studies") / arguments.name
    shape = Shape(
        env=arguments.env, values=arguments.values, workers=arguments.workers, servers=arguments.servers,
        seeds=arguments.seeds, words=tuple(words[split + 1 :]),
    )  # fmt: skip
    declared = build(arguments.name, shape)
    if arguments.list or arguments.task is not None:
        declared = load(folder)
    else:
        _check_points(declared)
        declared.save(folder)
        declared = load(folder)
    runs = list(declared.runs(folder))
    if arguments.list:
        return _list(runs)
    if arguments.slurm:
        sys.stdout.write(array_text(declared, folder, arguments.cpus_per_task, arguments.time))
        return 0
    if arguments.task is not None:
        if not 0 <= arguments.task < len(runs):
            raise UserError(f"--task {arguments.task}: the study has runs 0 to {len(runs) - 1}")
        return _run_task(runs[arguments.task])
    return run_all(runs)


def _check_points(declared: Study) -> None:
    """Every point's options are refused now, not after hours."""
    from launch.cli.options import parse_train
    from launch.local.resources import given_cores

    for point in declared.points:
        try:
            parse_train(point.words).config(given_cores(os.environ))
        except UserError as error:
            raise UserError(f"point {point.name} ({shlex.join(point.words)}): {error}") from error


def _list(runs: Sequence[Run]) -> int:
    for number, run in enumerate(runs):
        print(f"{number:4} {state_of(run):9} {run.name}")
    done = sum(state_of(run) == "finished" for run in runs)
    print(f"{done} of {len(runs)} runs are finished")
    return 0


def _run_task(run: Run) -> int:
    """One task of the job array: this process becomes the Slurm job of that run."""
    state = state_of(run)
    if state in ("finished", "live"):
        print(f"{run.name}: {state}, left alone")
        return 0
    words = ["train", *(run.point.cluster_words or run.point.words), "--seed", str(run.seed)]
    words += ["--resume"] if state != "missing" else []
    if "SLURM_JOB_ID" not in os.environ:
        return train(train_command(run, resume=state != "missing"))
    from launch.slurm import job as slurm_job

    nodes = str(run.point.nodes)
    return slurm_job.main(["--run-dir", str(run.folder), "--nodes", nodes, "--", "dba3c", *words])


def array_text(declared: Study, folder: Path, cpus_per_task: int, limit: str) -> str:
    """The Slurm job array of a study, one task a run: a pure function, as launch.cli.sbatch's."""
    runs = len(declared.points) * len(declared.seeds)
    nodes = max(point.nodes for point in declared.points)
    into = shlex.quote(str(folder))
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Study {declared.kind}: {len(declared.points)} points × {len(declared.seeds)} seeds = {runs} runs.",
            "# Task i is run i (dba3c study --list); submit again to go on with what is not finished.",
            "##SBATCH --account=",
            "##SBATCH --partition=",
            f"#SBATCH --job-name=study_{declared.kind}",
            f"#SBATCH --nodes={nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --cpus-per-task={cpus_per_task}",
            f"#SBATCH --time={limit}",
            f"#SBATCH --array=0-{runs - 1}",
            "#SBATCH --output=%x-%A_%a.out",
            "#SBATCH --open-mode=append",
            "",
            "# 180 s before the limit: a checkpoint; the job goes on in its next life (docs/cluster.md).",
            "#SBATCH --signal=B:USR1@180",
            "#SBATCH --requeue",
            "#SBATCH --no-kill",
            "",
            "set -eu",
            'source "${DBA3C_VENV:-.venv}/bin/activate"',
            "# A run on fewer nodes than the largest one gives the others back at once.",
            f'exec dba3c study {declared.kind} --into {into} --task "$SLURM_ARRAY_TASK_ID"',
            "",
        ]
    )


@dataclass(frozen=True)
class PlotStudyArguments:
    """Draw a study: its figures (PNG and SVG) and report.html."""

    study: Annotated[Path, tyro.conf.Positional]
    """The study's folder."""

    into: Path | None = None
    """Where the figures go; STUDY/figures by default."""

    y: str | None = None
    """Draw this chart of docs/metrics.md alone, e.g. optimizer/v_norm."""

    x: str | None = None
    """With --y: frames, hours, core-hours or a chart; None: the study's axis, where it has one, else frames."""

    commit_into: Path | None = None
    """Also copy the study's data there, downsampled: small enough to commit, and drawn from like the study itself."""


def plot(words: Sequence[str]) -> int:
    """dba3c plot STUDY, or dba3c plot RUN..."""
    if not words or words[0].startswith("-") or not (Path(words[0]) / "study.json").exists():
        from launch.cli.viewing_commands import plot as plot_runs

        return plot_runs(words)
    from dba3c.studies.report import plot_metric, plot_study
    from dba3c.studies.results import commit_into

    arguments = parse(PlotStudyArguments, words, "dba3c plot")
    if arguments.commit_into is not None:
        copied = commit_into(arguments.study, arguments.commit_into)
        print(f"{copied} runs copied to {arguments.commit_into}")
    if arguments.y is not None:
        print(*plot_metric(arguments.study, arguments.y, arguments.x, arguments.into), sep="\n")
        return 0
    if arguments.x is not None:
        raise UserError("--x goes with --y")
    print(*plot_study(arguments.study, arguments.into), sep="\n")
    return 0
