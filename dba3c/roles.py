"""What each process of a run does, once it knows its place; the run folder says the rest.

server (one shard of the parameters), worker (environments and gradients), evaluator, recorder, monitor. Each returns
the reason the run ended, or raises.
"""

from __future__ import annotations

from collections.abc import Callable

from dba3c.assembly.exchanges import connect
from dba3c.assembly.place import Place
from dba3c.metrics.exchange_records import to_event_records, to_server_records
from dba3c.runs.ending import StopRule
from dba3c.runs.rendezvous import Rendezvous


def server(place: Place) -> str:
    """Hold one shard of the parameters."""
    from dba3c.assembly.model import initial_parameters
    from param_servers.servers.server import ParameterServer

    config, folder = place.config, place.folder
    plan, parameters = initial_parameters(config)
    rendezvous, metrics = Rendezvous(folder), place.metrics("server")
    try:
        return ParameterServer(
            shard=place.rank,
            plan=plan,
            initial_parameters=parameters,
            optimizer_config=config.optimizer,
            exchange_config=config.exchange,
            resolve=rendezvous.address_of("server"),
            publish_address=rendezvous.publisher("server", place.rank, place.incarnation),
            secret=place.secret,
            incarnation=place.incarnation,
            checkpoint_dir=folder.checkpoints,
            audit_path=folder.audit / "commits.jsonl",
            life=folder.life_number(),
            should_stop=StopRule(folder, config),
            on_report=to_server_records(metrics),
            on_event=to_event_records(metrics),
        ).run()
    finally:
        metrics.close()


def worker(place: Place) -> str:
    """Step environments and compute gradients."""
    from dba3c.assembly.model import Spaces, build_model
    from dba3c.assembly.statistics_keeper import StatisticsKeeper
    from dba3c.environments.factory import make_vector_environment
    from dba3c.environments.protocol import worker_seed
    from dba3c.train.worker import run_worker

    config = place.config
    seed = worker_seed(config.run.seed, place.rank, place.incarnation)
    environments = make_vector_environment(config.environment, config.environment.envs_per_worker, seed)
    metrics = place.metrics("worker")
    try:
        model = build_model(config, Spaces(environments.observation_space, environments.action_space))
        keeper = StatisticsKeeper(place, "worker", [environments])
        exchange = connect(place, model.plan, model.parameters, metrics)
        try:
            who = {"rank": place.rank, "incarnation": place.incarnation}
            reason = run_worker(config, model.network, environments, exchange, metrics, **who, at_step=keeper.at)
            keeper.finish()
            return reason
        finally:
            exchange.close()
    finally:
        metrics.close()
        environments.close()


def monitor(place: Place) -> str:
    """Read the metrics of all, feed the trackers, decide when the score is reached."""
    from dba3c.metrics.monitor import monitor_process

    seen = monitor_process(place.folder.path, incarnation=place.incarnation)
    return seen.stop_reason or "the run has ended"


def evaluator(place: Place) -> str:
    """Play full games with each new checkpoint, and with the one that the run ends with."""
    from dba3c.evaluation.evaluator import run_evaluator

    return run_evaluator(place.folder, place.config, place.rank, incarnation=place.incarnation)


def recorder(place: Place) -> str:
    """Film a game of every k-th checkpoint."""
    from dba3c.recording.recorder import run_recorder

    return run_recorder(place.folder, place.config, place.rank, incarnation=place.incarnation)


def learner(place: Place) -> str:
    """Choose the actions of this learner's actors and train on what they did."""
    from dba3c.central.learner import learner

    return learner(place)


def actor(place: Place) -> str:
    """Step environments as a learner says."""
    from dba3c.central.actor import actor

    return actor(place)


ROLES: dict[str, Callable[[Place], str]] = {
    "server": server,
    "worker": worker,
    "learner": learner,
    "actor": actor,
    "monitor": monitor,
    "evaluator": evaluator,
    "recorder": recorder,
}
