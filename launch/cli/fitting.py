"""A configuration that fits the ranks there are: what the user counted must add up, what a preset counted gives way."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from launch.cli.options import value_of, with_long_names
from launch.cluster.launchers import LaunchPlace
from launch.cluster.topology import Topology, fit
from launch.local.run import RUNS, game_of
from param_servers.errors import ConfigError

COUNTS = ("num_workers", "num_gradients", "num_backup_workers", "actors")
"""In central inference `num_workers` are the learners."""
THROUGH_SERVERS = ("servers", "async")
"""Exchanges that have servers."""


def take_counts(words: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Split what the ranks must add up to (`num_workers`, …) from the other options; `num_servers` is in both.

    Raises:
        UserError: a count is no number.
    """
    words = with_long_names(words)
    counts: dict[str, int] = {}
    for name in COUNTS:
        option = "--" + name.replace("_", "-")
        while (value := value_of(words, option)) is not None:
            if not value.isdigit():
                raise UserError(f"{option} should be a number, it is {value!r}")
            counts[name] = int(value)
            at = words.index(option)
            del words[at : at + 2]
    servers = value_of(words, "--num-servers") or ""
    if servers.isdigit():
        counts["num_servers"] = int(servers)
    return counts, words


def refuse_servers_of_nobody(config: TrainConfig, given: int | None, topology: Topology) -> None:
    """Raise UserError where servers were asked for beside learners that do not exchange through any."""
    exchange = config.exchange.exchange
    if given and config.central.mode == "central" and exchange not in THROUGH_SERVERS:
        raise UserError(
            f"{topology.arithmetic()} leaves no rank for {given} servers: learners with exchange {exchange} have "
            "none (--exchange servers does)"
        )


def refuse_what_would_vanish(words: Sequence[str], config: TrainConfig) -> None:
    """On one machine, where no ranks must add up, what the user asked for must still have a part in the run.

    Raises:
        UserError: it would have none; the message is the arithmetic.
    """
    if config.central.mode == "central":
        learners, actors = config.exchange.num_workers, config.central.actors
        refuse_servers_of_nobody(
            config, take_counts(words)[0].get("num_servers"), Topology(learners=learners, actors=actors)
        )


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


def fit_config(
    config: TrainConfig, place: LaunchPlace, counts: Mapping[str, int], colocated_servers: bool = False
) -> tuple[TrainConfig, Topology]:
    """The configuration and topology for as many ranks as there are.

    Args:
        counts: the counts that the user gave (see `COUNTS`): these must fit the ranks exactly; a preset's give way.

    Raises:
        UserError: what was given contradicts the number of ranks; the message is the arithmetic.
    """
    exchange, run = config.exchange, config.run
    servers = exchange.num_servers if exchange.exchange in THROUGH_SERVERS else 0
    if sums_over_all_ranks(config) and run.evaluators + run.recorders:
        raise UserError(
            f"{exchange.collective_backend} sums over all {place.world_size} ranks, where an evaluator or a recorder "
            "has nothing to add: give --evaluators 0 --recorders 0, and use dba3c evaluate or record"
        )
    if config.central.mode == "central":
        topology = _central_topology(config, place, counts, servers)
        refuse_servers_of_nobody(config, counts.get("num_servers"), topology)
        given = {name: counts[name] for name in ("num_gradients", "num_backup_workers") if name in counts}
        return _replaced(config, num_workers=topology.learners, actors=topology.actors, **given), topology
    if exchange.exchange == "local" and place.world_size > 1:
        raise UserError(f"exchange local is one process, but {place.started_by} started {place.world_size} ranks")
    left = place.world_size - (0 if colocated_servers else servers) - run.evaluators - run.recorders
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
        colocated_servers=colocated_servers,
        started_by=place.started_by,
    )
    g_and_b: dict[str, int | None] = {
        "num_gradients": topology.gradients,
        "num_backup_workers": topology.backup_workers,
    }
    if exchange.exchange == "async":
        g_and_b = dict.fromkeys(g_and_b)
    return _replaced(config, num_workers=topology.workers, **g_and_b), topology


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
            started_by=place.started_by,
        )
    learners = place.world_size
    if counts.get("num_workers", learners) != learners:
        raise UserError(
            f"{config.exchange.collective_backend} sums over all ranks, so each is a learner with actors beside it:"
            f" {counts['num_workers']} learners need as many ranks, not {place.world_size}"
        )
    return Topology(learners=learners, actors=counts.get("actors", config.central.actors), colocated_actors=True)


def _replaced(config: TrainConfig, **options: int | None) -> TrainConfig:
    try:
        return replace_options(config, **options)
    except ConfigError as error:  # of the ranks only the chief says it
        raise UserError(str(error)) from error
