"""What a learner and an actor do, once they know their place; see `dba3c.roles`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dba3c.config import TrainConfig
from dba3c.errors import UserError

CENTRAL_ALGORITHMS = ("vtrace",)
LEARNER_SEEDS = 1 << 20
"""Learners' randomness is that of workers so far away that no actor shares it."""

if TYPE_CHECKING:
    from dba3c.agent import Agent
    from dba3c.central.serving import Serving
    from dba3c.central.wire import GroupShape
    from dba3c.construction import Spaces
    from dba3c.metrics import MetricsWriter
    from dba3c.place import Place


def learner(place: Place) -> str:
    """Answer this learner's actors and train on their unrolls."""
    from dba3c.central.learner import run_learner
    from dba3c.construction import build_agent, initial_parameters, spaces_of
    from dba3c.exchanges import connect
    from param_servers.interfaces import listen_address

    config, exchange_config = place.config, place.config.exchange
    check_algorithm(config)
    metrics = place.metrics("learner")
    try:
        spaces = spaces_of(config)
        agent = build_agent(config, spaces)
        serving = build_serving(place, spaces, agent, metrics)
        host = listen_address(exchange_config.listen_host, exchange_config.interface)
        address = serving.service.hub.listen(host)
        place.folder.publish(learner_name(place.rank), dict(zip(("host", "port"), address, strict=True)))
        exchange = connect(place, *initial_parameters(config), metrics)
        try:
            return run_learner(config, agent, serving, exchange, metrics)
        finally:
            exchange.close()
            serving.close("the learner is gone")
    finally:
        metrics.close()


def actor(place: Place) -> str:
    """Step environments as a learner says."""
    from dba3c.central.actor import Actor, ActorGroup
    from dba3c.construction import Spaces
    from dba3c.environments.factory import make_vector_environment
    from dba3c.environments.seeding import worker_seed

    config, central, exchange = place.config, place.config.central, place.config.exchange
    learner_rank = place.rank % exchange.num_workers
    metrics = place.metrics("actor")
    groups: list[ActorGroup] = []
    try:
        for index in range(central.actor_groups):
            seed = worker_seed(config.run.seed, place.rank * central.actor_groups + index, place.incarnation)
            environments = make_vector_environment(config.environment, central.envs_per_group, seed)
            shape = group_shape(config, Spaces(environments.observation_space, environments.action_space))
            groups.append(ActorGroup(environments, shape, seed))

        def resolve() -> tuple[str, int] | None:
            address = place.folder.published(learner_name(learner_rank))
            return None if address is None else (str(address["host"]), int(address["port"]))

        return Actor(
            rank=place.rank,
            incarnation=place.incarnation,
            learner=learner_rank,
            groups=groups,
            resolve=resolve,
            secret=place.secret,
            join_timeout_s=exchange.join_timeout_s,
            reconnect_timeout_s=exchange.reconnect_timeout_s,
            silence_timeout_s=exchange.step_timeout_s,
            on_failure=lambda line: metrics.record_event("environment", line),
            on_steps=lambda version, sections: metrics.record_step(version, {}, sections),
        ).run()
    finally:
        for group in groups:
            group.environments.close()
        metrics.close()


def learner_name(rank: int) -> str:
    """The name under which a learner publishes its address in the run folder."""
    return f"learner-{rank}"


def group_shape(config: TrainConfig, spaces: Spaces) -> GroupShape:
    """The shape of an actor's group."""
    from dba3c.central.wire import GroupShape

    environment = config.environment
    stack = environment.frame_stack if environment.family == "atari" else 1
    return GroupShape.of(spaces.observation, spaces.action, config.central.envs_per_group, stack)


def build_serving(place: Place, spaces: Spaces, agent: Agent, metrics: MetricsWriter) -> Serving:
    """The inference service of a learner, in the learner's thread or in its own."""
    from dba3c.central.batching import Batcher
    from dba3c.central.policies import ActorCriticPolicy
    from dba3c.central.service import InferenceService
    from dba3c.central.serving import ActorWatch, OwnThread, SharedThread
    from dba3c.central.unroll_store import GroupKey, UnrollStore
    from dba3c.construction import build_agent
    from dba3c.environments.seeding import worker_seed

    config, central, exchange = place.config, place.config.central, place.config.exchange
    own = central.inference_thread == "own"
    expected = central.actors_of(place.rank, exchange.num_workers)
    half = max(1, len(expected) * central.envs_per_actor // 2)
    batcher: Batcher[GroupKey] = Batcher(central.inference_batch or half, central.inference_timeout_ms / 1000)
    policy = ActorCriticPolicy(
        build_agent(config, spaces) if own else agent,
        worker_seed(config.run.seed, place.rank + LEARNER_SEEDS, place.incarnation),
    )
    service = InferenceService(
        place.secret,
        place.rank,
        policy,
        UnrollStore(group_shape(config, spaces), central.unroll_length),
        batcher,
        central.actor_groups,
        metrics.record_event,
        exchange.step_timeout_s,
    )
    watch = ActorWatch(expected, exchange.join_timeout_s)
    return OwnThread(service, watch, agent, central.groups_per_batch) if own else SharedThread(service, watch)


def check_algorithm(config: TrainConfig) -> None:
    """Refuse losses that need the policy itself to have acted."""
    algorithm = config.algorithm.algorithm
    if algorithm not in CENTRAL_ALGORITHMS:
        raise UserError(
            f"mode central learns from what older policies did: {algorithm} cannot; "
            f"use --algorithm {' or '.join(CENTRAL_ALGORITHMS)}"
        )
