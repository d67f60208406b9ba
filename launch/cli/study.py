"""``dba3c study NAME`` runs a declared grid, on this machine one run after the other, or as a Slurm job array."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import tyro

from dba3c.errors import UserError, did_you_mean
from dba3c.runs.folder import RunFolder
from dba3c.studies.study import OVER, Shape, Study, StudyPoint, StudyRun, build, load
from launch.cli.options import parse, parse_train, refuse_given
from launch.cli.sbatch import SlurmShape, job_text, refuse_short, request_lines
from launch.cluster.launchers import ALONE_IN_ITS_STEP, is_typed_in_its_shell
from launch.local.child import STOP_SIGNALS, before_exec, shell_code, taking_signals
from launch.local.fork_server import running_module
from launch.local.resources import given_cores
from launch.slurm import job as slurm_job
from param_servers.config import check_options, option


@dataclass(frozen=True, kw_only=True)
class GridArguments:
    """What any grid of runs is told: where it lies, and who runs it."""

    into: Path | None = None
    """The folder; without it one under studies/."""

    slurm: bool = False
    """Declare it and print a Slurm job array for it; nothing is run."""

    task: str | None = None
    """Do one task of the job array only: a run, by its name; of a search a trial, by its number."""

    list: bool = False
    """Say how far it is; nothing is run."""

    cpus_per_task: int = option(12, least=1)
    """--slurm: cores of each node."""

    time: str = "04:00:00"
    """--slurm: time limit of each task."""

    def __post_init__(self) -> None:
        check_options(self, UserError)
        if self.slurm + self.list + (self.task is not None) > 1:
            raise UserError("--slurm, --list and --task are one thing each: give one of them")
        if not self.slurm:
            refuse_given(self, ("cpus_per_task", "time"), "of --slurm, which is not given")


@dataclass(frozen=True, kw_only=True)
class StudyArguments(Shape, GridArguments):
    """Run a study: dba3c study scaling --values 1 2 4 --seeds 3 -- --max-hours 0.5

    NAME is scaling, parameter_servers, stragglers, learning_curves, architectures or games. What follows -- goes to
    every `dba3c train`. Called again, it goes on where it was: finished runs are left alone, stopped and broken ones
    resumed.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Which study."""


def study(words: Sequence[str]) -> int:
    """dba3c study NAME [OPTIONS] [-- TRAIN OPTIONS]"""
    words = list(words)
    split = words.index("--") if "--" in words else len(words)
    arguments = parse(StudyArguments, words[:split], "dba3c study")
    folder = arguments.into or Path("studies") / arguments.name.replace("-", "_")
    if arguments.list or arguments.task is not None:
        what = "what a study is declared with; --list and --task read one that is there"
        refuse_given(arguments, [each.name for each in fields(Shape)], what)
        if words[split + 1 :]:
            raise UserError(f"{shlex.join(words[split:])}: {what}")
        declared = load(folder)
        if arguments.name.replace("-", "_") != declared.kind:
            raise UserError(f"{folder} holds the study {declared.kind}, not {arguments.name}")
    else:
        tried = arguments.values and (*arguments.values, max(arguments.values) + 1)  # of one value nothing would vary
        refuse_what_varies(build(arguments.name, replace(arguments, values=tried)), words[split + 1 :])
        declared = declare(build(arguments.name, arguments, words[split + 1 :]), folder)
    return go_on(declared, folder, arguments, f"dba3c study {declared.kind}")


def refuse_what_varies(declared: Study, words: Sequence[str]) -> None:
    """Raises UserError where words for every run name what differs between its points, or is of one run alone."""
    said = parse_train(words)
    if "seed" in said.given or "run_dir" in said.given or said.resume:
        raise UserError("--seed, --run-dir and --resume are of one run: a study has --seeds and --into, and goes on")
    points = [parse_train(point.words).given for point in declared.points]
    for name in said.given.keys() & {name for given in points for name in given}:
        if any(given.get(name) != points[0].get(name) for given in points):
            raise UserError(f"--{name.replace('_', '-')} is what the study {declared.kind} varies: give --values")


def declare(declared: Study, folder: Path) -> Study:
    """The study in its folder, with what was there before. Raises UserError: a point that could not be trained."""
    replace(declared, points=checked(declared.points)).save(folder)
    return load(folder)


def go_on(declared: Study, folder: Path, arguments: GridArguments, command: str) -> int:
    """List it, print its job array, do one of its runs, or all that are left. `command`: what reads --into again."""
    runs = list(declared.runs(folder))
    if arguments.list:
        if declared.search is not None:
            print(f"{len(declared.points)} of {declared.search.trials} trials were begun")
        states = [run.state() for run in runs]
        for number, (run, state) in enumerate(zip(runs, states, strict=True)):
            print(f"{number:4} {state:9} {run.name}")
        print(f"{sum(map(states.count, OVER))} of {len(runs)} runs are finished")
        return 0
    if arguments.slurm:
        sys.stdout.write(array_text(declared, folder, arguments.cpus_per_task, arguments.time, command))
        return 0
    if arguments.task is not None:
        named = {run.name: run for run in runs}
        if arguments.task not in named:
            raise UserError(f"--task {arguments.task}: {did_you_mean(arguments.task, named)}")
        code = run_task(named[arguments.task])
        return 0 if named[arguments.task].is_over() else code
    return run_all(runs)


def checked(points: Sequence[StudyPoint]) -> tuple[StudyPoint, ...]:
    """The points, each of a cluster with a node for its evaluators and recorders, too.

    Raises:
        UserError: one could not be trained, which is said now, not after hours.
    """
    found = []
    for point in points:
        try:
            run = parse_train(point.words).config(given_cores(os.environ)).run
        except UserError as error:
            raise UserError(f"point {point.name} ({shlex.join(point.words)}): {error}") from error
        others = run.evaluators + run.recorders if point.cluster_words else 0
        found.append(replace(point, nodes=point.nodes + others))
    return tuple(found)


def run_task(run: StudyRun) -> int:
    """One task of the job array: this process becomes the Slurm job of that run.

    128 + n when signal n came, unless the job goes on in a next life: nothing more is to be started in this one.
    """
    state = run.state()
    if state in (*OVER, "live"):
        print(f"{run.name}: {state}, left alone")
        return 1 if state == "live" else 0
    words = ["train", *(run.point.cluster_words or run.point.words), "--seed", str(run.seed)]
    words += ["--resume"] if state != "missing" else []
    if "SLURM_JOB_ID" not in os.environ:
        return train(train_command(run, resume=state != "missing")) or unfinished([run])
    heard = list[int]()
    code = slurm_job.run_job(run.folder, ["dba3c", *words], run.point.nodes, heard)
    if code == 0 and was_requeued(run):
        return 0
    return 128 + heard[0] if heard else code or unfinished([run])


def was_requeued(run: StudyRun) -> bool:
    """Whether its life has ended for the time limit of its Slurm job, whose next life goes on with it."""
    try:
        ended = RunFolder.open(run.folder).life().get("ended")
    except UserError:
        return False
    return ended is None or slurm_job.WARNING in str(ended.get("reason"))


def unfinished(runs: Sequence[StudyRun], of: int = 1) -> int:
    """1, and a line, where any of these runs, which nothing went wrong with, has not come to its end; else 0."""
    names = [run.name for run in runs if not run.is_over()]
    if names:
        print(f"{len(names)} of {of} runs are not finished: {', '.join(names)}", file=sys.stderr)
    return 1 if names else 0


def array_text(declared: Study, folder: Path, cpus_per_task: int, limit: str, command: str) -> str:
    """The Slurm job array of a study, one task a run, or a trial of a search: a pure function."""
    search, seeds = declared.search, len(declared.seeds)
    tasks = search.trials if search else len(declared.points) * seeds
    nodes = max((point.nodes for point in declared.points), default=1)
    points, into = len(declared.points), shlex.quote(str(folder))
    refuse_short(limit, SlurmShape.warning_s)
    task = "$SLURM_ARRAY_TASK_ID" if search else "${runs[SLURM_ARRAY_TASK_ID]}"
    names = " ".join(shlex.quote(run.name) for run in declared.runs(folder))
    what = f"{tasks} trials × {seeds} seeds" if search else f"{points} points × {seeds} seeds = {tasks} runs"
    return job_text(
        [
            f"Study {declared.kind}: {what}.",
            f"Task i is {'trial i' if search else 'run i of those below'}; {command} --into {into} --list says how far "
            "they are. Submit again to go on with what is not finished.",
        ],
        request_lines(f"study_{declared.kind}", nodes=nodes, cpus_per_task=cpus_per_task, time=limit),
        [
            "# A run on fewer nodes than the largest one gives the others back at once.",
            *([] if search else [f"runs=({names})  # by name: the study may get more of them"]),
            f'exec {command} --into {into} --task "{task}"',
        ],
        last_task=tasks - 1,
        warning_s=SlurmShape.warning_s,
    )


def train(command: Sequence[str]) -> int:
    """Run it to its end. Stop signals are passed on to it; then the result is 128 + the first one's number.

    Its session is its own, so that a terminal's Ctrl-C reaches it once, and it does not outlive this process.
    """
    stopped_by: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(signum: int) -> None:
        stopped_by.append(signum)
        for child in children:
            child.send_signal(signum)

    # without the terminal it would take itself for one of srun's tasks
    alone = ALONE_IN_ITS_STEP if is_typed_in_its_shell(os.environ) else {}
    with taking_signals(pass_on):
        child = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=before_exec(os.getpid()),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **alone},
        )
        children.append(child)
        for signum in stopped_by[:1]:  # it came while the child was being made
            child.send_signal(signum)
        code = child.wait()
    return 128 + stopped_by[0] if stopped_by else shell_code(code)


def run_all(runs: Sequence[StudyRun], train: Callable[[Sequence[str]], int] = train) -> int:
    """The runs that are not finished, one after the other; one that fails costs a line.

    Exit 1 when any did, or is not finished in the end: one that was asked to stop, or is live elsewhere.
    """
    failed, began_s, new = [], time.monotonic(), 0
    others: list[StudyRun] = []
    for number, run in enumerate(runs, start=1):
        state, which = run.state(), f"[{number}/{len(runs)}] {run.name}"
        if state in (*OVER, "live") or state.startswith("unreadable"):
            print(f"{which}: {state}, left alone", flush=True)
            failed += [run.name] if state.startswith("unreadable") else []
            others += [run] if state == "live" else []
            continue
        to_do = sum(ahead.state() not in OVER for ahead in runs[number - 1 :])
        left_s = (time.monotonic() - began_s) / max(1, new) * to_do
        left = f", about {left_s / 60:.0f} min left" if new else ""
        print(f"{which}: {'starts' if state == 'missing' else 'resumed'}{left}", flush=True)
        new += 1
        try:
            code = train(train_command(run, resume=state != "missing"))
        except OSError as error:  # no process, no memory
            print(f"{which}: cannot be started ({error.strerror}), going on with the next", flush=True)
            failed.append(run.name)
            continue
        if code - 128 in STOP_SIGNALS:
            print("interrupted: the same command goes on from here", flush=True)
            return code
        if code and run.state() == "diverged":
            print(f"{which}: diverged, going on with the next", flush=True)
        elif code:
            print(f"{which}: failed with exit {code}, going on with the next", flush=True)
            failed.append(run.name)
        else:
            others.append(run)
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}", file=sys.stderr)
    return unfinished(others, len(runs)) or (1 if failed else 0)


def train_command(run: StudyRun, resume: bool) -> list[str]:
    """What trains one run of a study on this machine."""
    command = [*running_module("launch"), "train", *run.point.words, "--seed", str(run.seed)]
    return [*command, "--run-dir", str(run.folder), *(["--resume"] if resume else [])]
