"""What a learner and an actor do, once they know their place; see `dba3c.roles`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dba3c.config import TrainConfig

if TYPE_CHECKING:
    from dba3c.assembly.construction import Spaces
    from dba3c.assembly.place import Place
    from dba3c.central.wire import GroupShape
    from dba3c.environments.protocol import Experience, VectorEnvironment


def learner(place: Place) -> str:
    """Answer this learner's actors and train on their unrolls."""
    from dba3c.assembly.construction import initial_parameters
    from dba3c.assembly.exchanges import connect
    from dba3c.central.assembly import assemble
    from dba3c.central.learner import run_learner
    from dba3c.runs.rendezvous import Rendezvous
    from param_servers.wire.interfaces import listen_address

    config, rendezvous = place.config, Rendezvous(place.folder)
    metrics = place.metrics("learner")
    try:
        learner = assemble(place, metrics)
        try:
            host = listen_address(config.exchange.listen_host, config.exchange.interface)
            # Other exchanges listen themselves on the port that was chosen, in this process or beside it.
            port = config.exchange.port if config.exchange.exchange == "local" else 0
            address = learner.serving.service.hub.listen(host, port)
            rendezvous.publisher("learner", place.rank, place.incarnation)(*address)
            exchange = connect(place, *initial_parameters(config, learner.spaces), metrics)
            try:
                return run_learner(config, learner.trainer, learner.layout, learner.serving, exchange, metrics)
            finally:
                exchange.close()
        finally:
            learner.serving.close(None)
    finally:
        metrics.close()


def actor(place: Place) -> str:
    """Step environments as a learner says."""
    from dba3c.assembly.construction import Spaces
    from dba3c.assembly.statistics_keeper import StatisticsKeeper
    from dba3c.central.actor import Actor, ActorGroup
    from dba3c.environments.factory import make_vector_environment
    from dba3c.environments.protocol import worker_seed
    from dba3c.runs.rendezvous import Rendezvous

    config, central, exchange = place.config, place.config.central, place.config.exchange
    learner_rank = place.rank % exchange.num_workers
    metrics = place.metrics("actor")
    vectors: list[VectorEnvironment] = []
    try:
        seeds = [
            worker_seed(config.run.seed, place.rank * central.actor_groups + index, place.incarnation)
            for index in range(central.actor_groups)
        ]
        for seed in seeds:
            vectors.append(make_vector_environment(config.environment, central.envs_per_group, seed))
        keeper = StatisticsKeeper(place, "actor", vectors)
        shape = group_shape(config, Spaces(vectors[0].observation_space, vectors[0].action_space))
        groups = [ActorGroup(vector, shape, seed) for vector, seed in zip(vectors, seeds, strict=True)]

        def stepped(version: int, experience: Experience, sections: dict[str, float]) -> None:
            keeper.at(version)
            metrics.record_step(version, experience._asdict(), sections)

        address_of = Rendezvous(place.folder).address_of("learner")
        reason = Actor(
            rank=place.rank,
            incarnation=place.incarnation,
            learner=learner_rank,
            groups=groups,
            resolve=lambda: address_of(learner_rank),
            secret=place.secret,
            join_timeout_s=exchange.timeouts.start_s,
            answer_timeout_s=exchange.timeouts.actor_answer_s,
            reconnect_timeout_s=exchange.timeouts.return_s,
            silence_timeout_s=exchange.timeouts.silence_s,
            stop_reason=place.folder.stop_reason,
            on_failure=lambda line: metrics.record_event("environment_restarted", line),
            on_steps=stepped,
        ).run()
        keeper.finish()
        return reason
    finally:
        for vector in vectors:
            vector.close()
        metrics.close()


def group_shape(config: TrainConfig, spaces: Spaces) -> GroupShape:
    """The shape of an actor's group."""
    from dba3c.central.wire import GroupShape

    environment = config.environment
    stack = environment.frame_stack if environment.family == "atari" else 1
    envs = config.central.envs_per_group
    return GroupShape.of(spaces.observation, spaces.action, envs, stack, environment.shows_binary_planes)
