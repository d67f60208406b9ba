"""A configuration that fits the ranks there are: what the user counted must add up, what a preset counted gives way."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dba3c.config import TrainConfig, replace_options
from dba3c.errors import UserError
from launch.launchers import LaunchPlace
from launch.local import RUNS, game_of
from launch.options import value_of, with_long_names
from launch.topology import Topology, fit

COUNTS = ("num_workers", "num_gradients", "num_backup_workers", "actors")
"""In central inference `num_workers` are the learners."""


def take_counts(words: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Split what the ranks must add up to (`num_workers`, …) from the other options.

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
    return counts, words


def run_dir_of_launch(config: TrainConfig, place: LaunchPlace) -> Path:
    """Where all ranks of a launch, and a requeued job's next life, look when --run-dir is not given."""
    name = os.environ.get("SLURM_JOB_ID") or place.launch_id
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
    servers = exchange.num_servers if exchange.exchange in ("servers", "async") else 0
    if sums_over_all_ranks(config) and run.evaluators + run.recorders:
        raise UserError(
            f"{exchange.collective_backend} sums over all {place.world_size} ranks, where an evaluator or a recorder "
            "has nothing to add: give --evaluators 0 --recorders 0, and use dba3c evaluate or record"
        )
    if config.central.mode == "central":
        if actors_beside_learners(config):
            learners = place.world_size
            if counts.get("num_workers", learners) != learners:
                raise UserError(
                    f"{exchange.collective_backend} sums over all ranks, so each is a learner with actors beside it:"
                    f" {counts['num_workers']} learners need as many ranks, not {place.world_size}"
                )
            actors = counts.get("actors", config.central.actors)
            beside = Topology(learners=learners, actors=actors, colocated_actors=True)
            return replace_options(config, num_workers=learners, actors=actors), beside
        topology = fit(
            place.world_size,
            servers=servers,
            learners=counts.get("num_workers", exchange.num_workers),
            actors=counts.get("actors"),
            evaluators=run.evaluators,
            recorders=run.recorders,
            started_by=place.started_by,
        )
        return replace_options(config, num_workers=topology.learners, actors=topology.actors), topology
    if exchange.exchange == "local" and place.world_size > 1:
        raise UserError(f"exchange local is one process, but {place.started_by} started {place.world_size} ranks")
    left = place.world_size - (0 if colocated_servers else servers) - run.evaluators - run.recorders
    backup_workers = counts.get("num_backup_workers")
    if backup_workers is None and "num_gradients" not in counts and exchange.backup_workers < left:
        backup_workers = exchange.backup_workers
    topology = fit(
        place.world_size,
        servers=servers,
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
    return replace_options(config, num_workers=topology.workers, **g_and_b), topology
