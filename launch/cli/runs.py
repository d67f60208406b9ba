"""Commands on runs: `dba3c train` and `resume` (which run it is, in which folder, and who runs it), `stop`, `watch` and
`export`.

Without a launcher all roles are processes of this machine; with one each process is a rank, and the configuration is
fitted to as many as there are: what the user counted must add up, what a preset counted gives way.
"""

import os
import re
import secrets
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dba3c.config import TrainConfig
from dba3c.environments.config import game_of
from dba3c.errors import USER_ERROR_EXIT, UserError, warn_on_stderr
from dba3c.metrics import monitor as trackers
from dba3c.metrics import watch as live_view
from dba3c.resuming import changed_on_resume
from dba3c.runs.files import checkpoint_steps
from dba3c.runs.folder import STOP_COMMAND, RunFolder
from launch import rank, running
from launch.cli.configuration import TrainWords, fit_config, said_of_samples, sums_over_all_ranks
from launch.cli.options import parse, parse_resume, parse_train
from launch.cluster.launchers import PLAIN, STARTS_RANKS_AGAIN, LaunchPlace, detect
from launch.local.resources import given_cores
from launch.output import say_to_stderr
from launch.slurm import controller
from launch.slurm.job import WARNING

RUNS = Path("runs")


def train(words: Sequence[str]) -> int:
    """dba3c train [ENV] [OPTIONS], alone or as one rank of srun, mpirun, torchrun, …

    The only rank of a launch (in a shell of ``srun --pty bash``, which is itself a step) trains as on one machine.
    """
    command = shlex.join(["dba3c", "train", *words])
    said, place = parse_train(words), detect(os.environ)
    if place.world_size > 1 or (place != PLAIN and said.colocated_servers):
        return train_as_rank(said, place, command)
    if said.colocated_servers:
        raise UserError(
            "--colocated-servers is for ranks (srun, mpirun, torchrun, …; docs/cluster.md): without a launcher "
            "all servers and workers are processes of this machine anyway"
        )
    config = said.config(given_cores(os.environ))
    if place != PLAIN and sums_over_all_ranks(config):
        return train_as_rank(said, place, command)  # over the launcher's ranks, of which there is one
    told = said_of_samples(said, config)
    if place.launcher in STARTS_RANKS_AGAIN and place.launch_id:
        run_dir = config.run.run_dir or run_dir_of_launch(config, place)
        returns = not said.resume and running.returns(run_dir, place)
        if returns:
            running.wait_for_its_dead_lock(run_dir)
        return running.train(
            config, run_dir, resume=said.resume or returns, command=command, told=told,
            launch_id=place.launch_id, run_name=place.run_name,
        )[0]  # fmt: skip
    return running.train(config, run_dir_of(config, said.resume), resume=said.resume, command=command, told=told)[0]


def resume(words: Sequence[str]) -> int:
    """dba3c resume RUN [OPTIONS]"""
    run, given = parse_resume(words)
    place = detect(os.environ)
    if place.world_size > 1:  # each rank would be the whole run
        raise UserError(
            f"dba3c resume is one process, but {place.launcher} started {place.world_size} ranks: let them run "
            f"dba3c train with the options that the run began with, and --resume --run-dir {run}"
        )
    folder = RunFolder.open(run)
    config = changed_on_resume(folder.train_config(), given)
    running.refuse_whole_cluster(config, folder)
    if job := controller.next_life(folder.path):
        warn_on_stderr(job)  # which would be refused the run that goes on here
    return running.train(config, folder.path, resume=True, command=shlex.join(["dba3c", "resume", *words]))[0]


def train_as_rank(said: TrainWords, place: LaunchPlace, command: str) -> int:
    """What is said is the same in all ranks. Raises UserError: options that contradict the number of ranks."""
    try:
        if "listen_host" in said.given:
            raise UserError("listen_host is an option of one machine; say where ranks listen with --interface")
        config, topology = fit_config(said, place, given_cores(os.environ, place.local_world_size))
        run_dir = config.run.run_dir or run_dir_of_launch(config, place)
    except UserError:
        if place.is_chief:
            raise
        return USER_ERROR_EXIT  # the same was said to every rank: the chief says it once
    if place.is_chief:
        say_to_stderr(f"{topology.arithmetic()}; run folder: {run_dir}")
        for line in said_of_samples(said, config):
            say_to_stderr(line)
    return rank.run_rank(config, place, topology, run_dir, resume=said.resume, command=command)


def run_dir_of_launch(config: TrainConfig, place: LaunchPlace) -> Path:
    """Where all ranks of a launch, and its next life (a requeued job's, torchrun's), look without --run-dir."""
    name = os.environ.get("SLURM_JOB_ID") or place.run_name or place.launch_id
    if not name:
        raise UserError(f"{place.launcher} gives its ranks no common name: say --run-dir, the same for all")
    return RUNS / f"{game_of(config.environment.env_id)}-{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}"


def run_dir_of(config: TrainConfig, goes_on: bool) -> Path:
    """--run-dir; without it a new folder (runs/breakout-20171231-235959-7f3a, for ALE/Breakout-v5), or that of this
    environment's newest run. Raises UserError: there is none."""
    if config.run.run_dir:
        return config.run.run_dir
    env_id = config.environment.env_id
    game = game_of(env_id)
    if not goes_on:
        # Several may begin within a second: tasks of a job array.
        return RUNS / f"{game}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    found = sorted(RUNS.glob(f"{game}-[0-9]*-[0-9]*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in (path.parent for path in found):  # another version, or module, has a game of that name, too
        if RunFolder(folder).config()["environment"]["env_id"] == env_id:
            return folder
    raise UserError(f"nothing to resume: no run of {env_id} under {RUNS}/; name one with --run-dir")


@dataclass(frozen=True)
class OneRun:
    """A run that is there."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""


def stop(words: Sequence[str]) -> int:
    """dba3c stop RUN"""
    print(ask_to_end(parse(OneRun, words, "dba3c stop", "Ask a live run to end with a checkpoint.").run))
    return 0


def ask_to_end(run: str | os.PathLike[str], may_have_ended: bool = False) -> str:
    """Ask a live run to end with a checkpoint; a line on what becomes of it.

    Args:
        may_have_ended: one that has, and has no further life, is left alone, and the line says why it did.

    Raises:
        UserError: it is not live.
    """
    folder = RunFolder.open(run)
    status = folder.status()
    if status == "live" and folder.request_stop(STOP_COMMAND):
        return f"asked {folder.path} to end with a checkpoint"
    what = f"{folder.path} is not live: it is {status}"
    if status == "live":
        what = f"{folder.path} is ending already: {folder.stop_reason()}"
        if not what.endswith(WARNING):
            return what
    job = controller.next_life(folder.path)
    if may_have_ended and status == "finished" and not job:
        return f"{folder.path} has ended: {folder.life()['ended']['reason']}"
    raise UserError(f"{what}, but {job}" if job else what)


def watch(words: Sequence[str]) -> int:
    """dba3c watch RUN"""
    what = "Look at a live or finished run, on its machine or over a shared file system."
    run = parse(OneRun, words, "dba3c watch", what).run
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the terminal's cursor comes back
    status = live_view.watch(run)
    folder = RunFolder(run)
    if ended := folder.life().get("ended"):
        print(f"this run has {status}: {ended.get('reason')}")
    elif status == "broken":
        saved = max(checkpoint_steps(folder.checkpoints), default=0)
        job = controller.next_life(folder.path)
        but, named = f", but {job}" if job else "", shlex.quote(str(run))
        print(f"this run is broken, its launch is gone: dba3c resume {named} goes on from step {saved:,}{but}")
    return 0 if status in ("live", "finished", "stopped") else 1


@dataclass(frozen=True)
class ExportArguments(OneRun):
    """Replay a run's metrics into a tracker."""

    to: str
    """tensorboard, neptune, mlflow or wandb."""

    into: Path | None = None
    """Where a tracker that writes files puts them; RUN/exports by default."""


def export(words: Sequence[str]) -> int:
    """dba3c export RUN --to TRACKER"""
    arguments = parse(ExportArguments, words, "dba3c export")
    points = trackers.export(arguments.run, arguments.to, arguments.into)
    print(f"{points} points to {arguments.to}")
    return 0
