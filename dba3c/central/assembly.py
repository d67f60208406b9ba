"""From a configuration to the objects of a learner: policy, trainer and service, for each algorithm."""

from __future__ import annotations

from typing import NamedTuple

from dba3c.algorithms.agent import FlatNetwork
from dba3c.assembly.construction import Spaces, build_agent, build_any_network, plan_of, spaces_of
from dba3c.assembly.place import Place
from dba3c.central.algorithm import Policy, Trainer
from dba3c.central.inference_thread import ActorWatch, OwnThread, Serving, SharedThread
from dba3c.central.r2d2 import R2d2Policy, R2d2Trainer
from dba3c.central.replay import TargetStore
from dba3c.central.roles import group_shape
from dba3c.central.sac import SacPolicy, SacTrainer
from dba3c.central.service import MOST_ACTORS, Batcher, InferenceService
from dba3c.central.unrolls import GroupKey, UnrollStore
from dba3c.central.vtrace import ActorCriticPolicy, ActorCriticTrainer
from dba3c.config import TrainConfig
from dba3c.environments.protocol import worker_seed
from dba3c.metrics.writer import MetricsWriter
from param_servers.layout import FlatLayout

LEARNER_SEEDS = 1 << 20
"""Learners' randomness is that of workers so far away that no actor shares it."""


class Learner(NamedTuple):
    """What ``run_learner`` takes."""

    trainer: Trainer
    layout: FlatLayout
    serving: Serving
    spaces: Spaces


def assemble(place: Place, metrics: MetricsWriter) -> Learner:
    """The parts of learner ``place.rank``; its hub does not listen yet."""
    config, central, exchange = place.config, place.config.central, place.config.exchange
    spaces, own = spaces_of(config), central.inference_thread == "own"
    actors = central.actors_of(place.rank, exchange.num_workers)
    seed = worker_seed(config.run.seed, place.rank + LEARNER_SEEDS, place.incarnation)
    network = build_network(config, spaces)
    policy = build_policy(config, build_network(config, spaces) if own else network, spaces, seed)
    half = max(1, len(actors) * central.envs_per_actor // 2)
    batcher: Batcher[GroupKey] = Batcher(central.inference_batch or half, central.inference_timeout_ms / 1000)
    service = InferenceService(
        place.secret,
        place.rank,
        policy,
        UnrollStore(group_shape(config, spaces), central.unroll_length),
        batcher,
        central.actor_groups,
        metrics.record_event,
        exchange.timeouts.silence_s,
        # the replay has places for the environments that were announced; V-trace takes whoever comes
        most_actors=central.actors if config.algorithm.algorithm == "r2d2" else MOST_ACTORS,
    )
    targets = target_store(place, metrics)
    trainer = build_trainer(config, network, spaces, actors, seed, targets)
    watch = ActorWatch(actors, exchange.timeouts.first_step_s)
    if own:
        return Learner(trainer, network.layout, OwnThread(service, watch, network, trainer.groups_per_batch), spaces)
    return Learner(trainer, network.layout, SharedThread(service, watch), spaces)


def build_network(config: TrainConfig, spaces: Spaces) -> FlatNetwork:
    """The algorithm's network: an ``Agent`` for V-trace."""
    if config.algorithm.algorithm == "vtrace":
        return build_agent(config, spaces)
    network = build_any_network(config, spaces)
    layout = plan_of(config, network).layout
    return FlatNetwork(network, layout, precision=config.network.precision, device=config.network.device)


def build_policy(config: TrainConfig, network: FlatNetwork, spaces: Spaces, seed: int) -> Policy:
    """How actions are chosen."""
    if config.algorithm.algorithm == "r2d2":
        return R2d2Policy(network, config.central.actors * config.central.envs_per_actor, seed)
    if config.algorithm.algorithm == "sac":
        return SacPolicy(network, spaces, seed)
    return ActorCriticPolicy(network, seed)  # type: ignore[arg-type]


def target_store(place: Place, metrics: MetricsWriter) -> TargetStore:
    """Where this learner's target networks are: as many as the run's checkpoints may go back to."""
    exchange, period = place.config.exchange, place.config.replay.target_every_steps
    keep = exchange.keep_checkpoints * max(1, -(-(exchange.checkpoint_every_steps or 1) // period)) + 2
    return TargetStore(place.folder.path / "targets" / f"learner-{place.rank}", keep, metrics.record_event)


def build_trainer(
    config: TrainConfig,
    network: FlatNetwork,
    spaces: Spaces,
    actors: range,
    seed: int,
    targets: TargetStore | None = None,
) -> Trainer:
    """How unrolls become gradients."""
    if config.algorithm.algorithm == "r2d2":
        return R2d2Trainer(config, network, group_shape(config, spaces), actors, seed, targets)
    if config.algorithm.algorithm == "sac":
        return SacTrainer(config, network, spaces, seed, targets)
    return ActorCriticTrainer(config, network)  # type: ignore[arg-type]
