"""``dba3c sweep ENV --learning-rate 1e-3 3e-4``: a study of the user's own points, or a search for the best one."""

import difflib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from dba3c.config import TrainConfig, option_names, short_names
from dba3c.environments.config import game_of
from dba3c.errors import UserError
from dba3c.runs.files import is_there
from dba3c.studies.report import plot_study
from dba3c.studies.results import read_results
from dba3c.studies.statistics import score_text
from dba3c.studies.study import MOST_RUNS, STUDY_FILE, Search, Study, StudyRun, load
from dba3c.studies.sweep import RANGE, OptunaSearch, grid, installed, point_of, searched, told, words_of
from launch.cli.options import parse, parse_train
from launch.cli.study import (
    GridArguments,
    checked,
    declare,
    go_on,
    run_all,
    run_task,
)
from launch.local.child import STOP_SIGNALS
from launch.slurm import job as slurm_job
from param_servers.config import option

REFUSED = {"seed": "a sweep has --seeds N", "run-dir": "a sweep has --into", "resume": "the same sweep again goes on"}


@dataclass(frozen=True, kw_only=True)
class SweepArguments(GridArguments):
    """Try options of `dba3c train`: dba3c sweep CartPole-v1 --learning-rate 1e-3 7e-4 3e-4 --seeds 3

    ENV is the environment or preset. Every option of `dba3c train` with several values is varied, each value with every
    other; what has one value is the same for all. With --search optuna a range is possible, --learning-rate
    1e-4..1e-2. Called again, or with --into alone, it goes on where it was, and ends with a table of its points.
    """

    seeds: int = option(3, least=1, most=MOST_RUNS)
    """How many runs of each point."""

    search: Literal["optuna"] | None = None
    """Draw the points, knowing how good those before were."""

    trials: int = option(20, least=1, most=MOST_RUNS)
    """--search: how many points are drawn."""


def sweep(words: Sequence[str]) -> int:
    """dba3c sweep [ENV] [OPTIONS]"""
    own, common, axes = split(words)
    arguments = parse(SweepArguments, own, "dba3c sweep [ENV|PRESET] [TRAIN OPTIONS]")
    if axes and arguments.search is None and "--trials" in own:
        raise UserError("--trials is of a search: --search optuna")
    folder = arguments.into or Path("studies") / name_of(common, axes)
    goes_on = not axes and not common and is_there(folder / STUDY_FILE)
    if arguments.list or arguments.task is not None:
        declared = load(folder)
    elif goes_on:
        declared = extended(load(folder), folder, own, arguments)
    elif arguments.search is None:
        declared = declare(grid(common, axes, arguments.seeds), folder)
    else:
        installed()
        declared = searched(common, axes, arguments.seeds, arguments.trials)
        checked([point_of(common, values, 0) for values in ends(axes)])
        declared.save(folder)
        declared = load(folder)
    if declared.search is None or arguments.list or arguments.slurm:
        code = go_on(declared, folder, arguments, "dba3c sweep")
    else:
        code = search(declared, declared.search, folder, trial_of(arguments.task, declared.search.trials))
    if not (arguments.list or arguments.slurm or arguments.task is not None or code - 128 in STOP_SIGNALS):
        results = read_results(folder)
        print(*told(results), sep="\n")  # first: the disk may have no room for the figure
        written = plot_study(folder, results=results)
        print(f"figure and page: {written[0]}, {written[-1]}")
    return code


def trial_of(task: str | None, trials: int) -> int | None:
    """Which trial a task is, None for all. Raises UserError: there is no such trial."""
    if task is not None and task not in map(str, range(trials)):
        raise UserError(f"--task {task}: the search has trials 0 to {trials - 1}")
    return None if task is None else int(task)


def extended(declared: Study, folder: Path, own: Sequence[str], arguments: SweepArguments) -> Study:
    """A sweep that goes on, with the seeds and trials that are given now. Raises UserError: it draws no trials."""
    given = set(own)
    if "--seeds" in given:
        declared = replace(declared, seeds=tuple(range(arguments.seeds)))
    if "--trials" in given:
        if declared.search is None:
            raise UserError(f"{folder} holds a grid, which draws no trials: give an option more values instead")
        if arguments.trials < declared.search.trials:
            raise UserError(f"--trials {arguments.trials}: the search in {folder} has {declared.search.trials} already")
        declared = replace(declared, search=replace(declared.search, trials=arguments.trials))
    if given & {"--seeds", "--trials"}:
        declared.save(folder)
    return load(folder)


def split(words: Sequence[str]) -> tuple[list[str], list[str], list[tuple[str, ...]]]:
    """The sweep's own words, those of `dba3c train` that all points have, and the options that vary with their values.

    Raises:
        UserError: an option of one run (its seed, its folder), or a word behind the value of one of the sweep's own.
    """
    own: list[str] = []
    common: list[str] = []
    axes: list[tuple[str, ...]] = []
    mine = {each.name.replace("_", "-") for each in fields(SweepArguments)} | {"help"}
    lists, short, known = options_with_lists(), short_names(), {*option_names(), *short_names()}
    given: dict[str, str] = {}
    for flag, values in grouped(words):
        name = flag.removeprefix("--").replace("_", "-")
        if name in REFUSED:
            raise UserError(f"--{name} is of one run: {REFUSED[name]}")
        option = name.replace("-", "_")
        option = short.get(option, option)
        if option in given:
            raise UserError(f"{flag} is given twice" + (f", as {given[option]} too" if given[option] != flag else ""))
        given[option] = flag
        if name in mine or flag == "-h":
            if len(values) > 1:
                raise UserError(
                    f"{values[1]} belongs to no option; ENV comes first: dba3c sweep ENV {flag} {values[0]}"
                )
            own += [flag, *values]
        elif flag and option not in known and (close := difflib.get_close_matches(name, mine, cutoff=0.75)):
            raise UserError(f"unknown option {flag}; did you mean --{close[0]}?")
        elif flag and name not in lists and (len(values) > 1 or any(RANGE.fullmatch(value) for value in values)):
            if len(set(map(as_a_number, values))) < len(values):
                raise UserError(f"a value of --{name} is given twice")
            axes.append((name, *values))
        else:
            common += [*([flag] if flag else []), *values]
    return own, common, axes


def as_a_number(value: str) -> float | str:
    """1e-3 and 0.001 are one; what is no number is itself."""
    try:
        return float(value)
    except ValueError:
        return value


def grouped(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """(--option, its values), in order; what stands before all options is of none."""
    groups: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        if word.startswith("--") or word == "-h":
            name, equals, value = word.partition("=")
            groups.append((name, [value] if equals else []))
        else:
            groups[-1][1].append(word)
    return groups


def options_with_lists() -> set[str]:
    """Options whose value is, or may be, a list already: several words are one value."""
    groups = map(get_type_hints, get_type_hints(TrainConfig).values())
    kinds = {name.replace("_", "-"): kind for group in groups for name, kind in group.items()}
    return {name for name, kind in kinds.items() if tuple in (get_origin(kind), *map(get_origin, get_args(kind)))}


def ends(axes: Sequence[tuple[str, ...]]) -> list[list[tuple[str, str]]]:
    """Every value of each axis, and both ends of a range, with the first of the others: what can be checked at once."""
    possible = {}
    for name, *values in axes:
        found = RANGE.fullmatch(values[0])
        possible[name] = [*found.groups()] if found else values
    first = {name: values[0] for name, values in possible.items()}
    return [[*{**first, name: value}.items()] for name, values in possible.items() for value in values]


def name_of(common: Sequence[str], axes: Sequence[tuple[str, ...]]) -> str:
    """The folder's name, e.g. cartpole-learning-rate."""
    said = parse_train(common)
    env = said.given.get("env_id") or said.preset or "breakout"
    return "-".join([game_of(env), *(name for name, *_ in axes)])


# -- a search ----------------------------------------------------------------------------------------------------------


def search(declared: Study, drawn_from: Search, folder: Path, task: int | None) -> int:
    """All trials that are left, or one of them; see `launch.cli.study.go_on`."""
    trials = drawn_from.trials
    drawn, failed = OptunaSearch(drawn_from, folder), 0
    for number in range(trials) if task is None else (task,):
        point = drawn.point(number)
        runs = list(declared.runs(folder, [point]))
        print(f"trial {number + 1} of {trials}: {words_of(point, drawn_from.words)}", flush=True)
        code = run_all(runs) if task is None else run_tasks(runs)
        if code - 128 in STOP_SIGNALS:
            return code
        if code or not all(run.is_over() for run in runs):  # half a score would mislead what is drawn next
            if task is not None and code == 0:
                return 0  # a job that was requeued: its next life goes on with this trial
            said = "a run failed, was stopped or is live elsewhere; the same command goes on with it"
            failed += 1
        else:
            try:
                score = drawn.tell(number, runs)
                without = "diverged" if any(run.state() == "diverged" for run in runs) else "no score"
                said = without if score is None else f"best mean score {score_text(score)}"
            except UserError as error:
                said = f"{error}; the same command goes on with it"
                failed += 1
        print(f"trial {number + 1} of {trials}: {said}", flush=True)
    return 1 if failed else 0


def run_tasks(runs: Sequence[StudyRun]) -> int:
    """All seeds of one trial, also after one that failed, but not after a stop signal or the end of a job's time."""
    failed = 0
    for run in runs:
        code = run_task(run)
        if not run.is_over():
            if code == 0 or code - 128 in STOP_SIGNALS:
                return code
            failed = failed or code
        elif code - 128 in STOP_SIGNALS and run is not runs[-1]:  # it came while the run was ending by itself
            in_time = code == 128 + signal.SIGUSR1 and "SLURM_JOB_ID" in os.environ
            return slurm_job.requeue(os.environ) if in_time else code
    return failed
