"""`dba3c train` and `dba3c resume`: which run it is, in which folder, and who runs it.

Without a launcher all roles are processes of this machine; with one each process is a rank, and the configuration is
fitted to as many as there are: what the user counted must add up, what a preset counted gives way.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dba3c.config import TrainConfig, changed_on_resume, replace_options
from dba3c.errors import USER_ERROR_EXIT, UserError
from dba3c.runs.folder import RunFolder
from launch import running
from launch.cli.batch import shared_anew
from launch.cli.main import HERE, loaded
from launch.cli.options import TrainWords, parse_resume, parse_train, said_of_samples
from launch.cluster.launchers import PLAIN, STARTS_RANKS_AGAIN, LaunchPlace, detect
from launch.cluster.topology import Topology, fit
from launch.local.resources import given_cores
from launch.local.supervisor import say_to_stderr

RUNS = Path("runs")
COUNTS = ("num_workers", "num_gradients", "num_backup_workers", "actors")
"""Options that the ranks must add up to; in central inference `num_workers` are the learners."""
THROUGH_SERVERS = ("servers", "async")
"""Exchanges that have servers."""


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
    run, told = loaded(HERE), said_of_samples(said, config)
    if place.launcher in STARTS_RANKS_AGAIN and place.launch_id:
        run_dir = config.run.run_dir or run_dir_of_launch(config, place)
        goes_on = said.resume or running.returns(run_dir, place)
        of_launch = {"launch_id": place.launch_id, "run_name": place.run_name}
        return run(config, run_dir, resume=goes_on, command=command, told=told, **of_launch)
    return run(config, run_dir_of(config, said.resume), resume=said.resume, command=command, told=told)


def resume(words: Sequence[str]) -> int:
    """dba3c resume RUN [OPTIONS]"""
    run, given = parse_resume(words)
    folder = RunFolder.open(run)
    config = changed_on_resume(TrainConfig.from_json(folder.config_text()), given)
    return loaded(HERE)(config, folder.path, resume=True, command=shlex.join(["dba3c", "resume", *words]))


def train_as_rank(said: TrainWords, place: LaunchPlace, command: str) -> int:
    """What is said is the same in all ranks. Raises UserError: options that contradict the number of ranks."""
    try:
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
    return running.run_rank(config, place, topology, run_dir, resume=said.resume, command=command)


def run_dir_of_launch(config: TrainConfig, place: LaunchPlace) -> Path:
    """Where all ranks of a launch, and its next life (a requeued job's, torchrun's), look without --run-dir."""
    name = os.environ.get("SLURM_JOB_ID") or place.run_name or place.launch_id
    if not name:
        raise UserError(f"{place.launcher} gives its ranks no common name: say --run-dir, the same for all")
    return RUNS / f"{game_of(config)}-{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}"


def sums_over_all_ranks(config: TrainConfig) -> bool:
    """Whether every rank that was started is a member of the sum: MPI and Horovod know no other group."""
    return config.exchange.exchange == "allreduce" and config.exchange.collective_backend in ("mpi", "horovod")


def actors_beside_learners(config: TrainConfig) -> bool:
    """Whether actors get no ranks of their own: in a sum over all ranks an actor has nothing to add."""
    return config.central.mode == "central" and sums_over_all_ranks(config)


def fit_config(said: TrainWords, place: LaunchPlace, cores: int = 1) -> tuple[TrainConfig, Topology]:
    """The configuration and topology for as many ranks as there are: the counts that were said must fit them exactly.

    Args:
        cores: of each rank. A worker has a lane for each; an actor steps its games with as many threads.

    Raises:
        UserError: what was given contradicts the number of ranks; the message is the arithmetic.
    """
    counts = {name: said.given[name] for name in COUNTS if said.given.get(name) is not None}
    config = said.config(place.world_size, without=COUNTS, cores_per_worker=cores)
    exchange, run = config.exchange, config.run
    servers = exchange.num_servers if exchange.exchange in THROUGH_SERVERS else 0
    if sums_over_all_ranks(config) and run.evaluators + run.recorders:
        raise UserError(
            f"{exchange.collective_backend} sums over all {place.world_size} ranks, where an evaluator or a recorder "
            "has nothing to add: give --evaluators 0 --recorders 0, and use dba3c evaluate or record"
        )
    if config.central.mode == "central":
        topology = _central_topology(config, place, counts, servers)
        given: dict[str, Any] = {
            name: counts[name] for name in ("num_gradients", "num_backup_workers") if name in counts
        }
        if config.environment.family == "atari" and not topology.colocated_actors:
            given |= _games_of_an_actor(config, said, cores)
        return replace_options(config, num_workers=topology.learners, actors=topology.actors, **given), topology
    if exchange.exchange == "local" and place.world_size > 1:
        raise UserError(f"exchange local is one process, but {place.launcher} started {place.world_size} ranks")
    left = place.world_size - (0 if said.colocated_servers else servers) - run.evaluators - run.recorders
    backup_workers = counts.get("num_backup_workers")
    if backup_workers is None and "num_gradients" not in counts and exchange.backup_workers < left:
        backup_workers = exchange.backup_workers
    topology = fit(
        place.world_size,
        servers=servers,
        actors=counts.get("actors"),
        workers=counts.get("num_workers"),
        gradients=counts.get("num_gradients"),
        backup_workers=backup_workers,
        evaluators=run.evaluators,
        recorders=run.recorders,
        colocated_servers=said.colocated_servers,
        started_by=place.launcher,
    )
    g_and_b: dict[str, int | None] = {
        "num_gradients": topology.gradients,
        "num_backup_workers": topology.backup_workers,
    }
    envs = {}
    if exchange.exchange == "async":
        g_and_b = dict.fromkeys(g_and_b)
    else:
        envs = shared_anew(config, topology.gradients, said.given, said.preset)
    return replace_options(config, num_workers=topology.workers, **g_and_b, **envs), topology


def _games_of_an_actor(config: TrainConfig, said: TrainWords, cores: int) -> dict[str, int]:
    """An actor steps with a thread per core, and has at least one game for each in both of its groups."""
    envs = max(config.central.envs_per_actor, config.central.actor_groups * cores)
    return {name: n for name, n in (("env_threads", cores), ("envs_per_actor", envs)) if name not in said.given}


def _central_topology(config: TrainConfig, place: LaunchPlace, counts: Mapping[str, int], servers: int) -> Topology:
    run = config.run
    if not actors_beside_learners(config):
        return fit(
            place.world_size,
            servers=servers,
            learners=counts.get("num_workers", config.exchange.num_workers),
            actors=counts.get("actors"),
            evaluators=run.evaluators,
            recorders=run.recorders,
            started_by=place.launcher,
        )
    learners = place.world_size
    if counts.get("num_workers", learners) != learners:
        raise UserError(
            f"{config.exchange.collective_backend} sums over all ranks, so each is a learner with actors beside it:"
            f" {counts['num_workers']} learners need as many ranks, not {place.world_size}"
        )
    return Topology(learners=learners, actors=counts.get("actors", config.central.actors), colocated_actors=True)


def run_dir_of(config: TrainConfig, goes_on: bool) -> Path:
    """--run-dir; without it a new folder, or that of this game's newest run. Raises UserError: there is none."""
    return config.run.run_dir or (newest_run_dir(config) if goes_on else default_run_dir(config))


def default_run_dir(config: TrainConfig) -> Path:
    """runs/breakout-20171231-235959, for ALE/Breakout-v5."""
    return RUNS / f"{game_of(config)}-{time.strftime('%Y%m%d-%H%M%S')}"


def newest_run_dir(config: TrainConfig) -> Path:
    """The youngest of this game's runs under runs/.

    Raises:
        UserError: there is none.
    """
    found = sorted(RUNS.glob(f"{game_of(config)}-[0-9]*-[0-9]*/config.json"))
    if not found:
        raise UserError(
            f"nothing to resume: no run of {config.environment.env_id} under {RUNS}/; name one with --run-dir"
        )
    return found[-1].parent


def game_of(config: TrainConfig) -> str:
    """ "breakout" for ALE/Breakout-v5, "make_env" for package.module:make_env."""
    return config.environment.env_id.split("/")[-1].split(":")[-1].rsplit("-v", 1)[0].lower()
