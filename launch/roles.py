"""One process of a run: ``python -m launch.roles --run-dir RUN --role worker --rank 3``. The run folder says the rest."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.run_folder import RunFolder
from launch.cli import RUN_BROKEN_EXIT, USER_ERROR_EXIT
from param_servers.errors import ConfigError, ParamServersError

STOP_LOOK_S = 1.0
"""How often the coordinator looks for a request to stop."""


@dataclass(frozen=True)
class Place:
    """Who this process is."""

    folder: RunFolder
    config: TrainConfig
    rank: int
    incarnation: int


def run_server_role(place: Place) -> str:
    """Hold one shard of the parameters until the run ends; returns the reason it ended."""
    from dba3c.construction import initial_parameters
    from dba3c.metrics import MetricsWriter
    from launch.rendezvous import Rendezvous
    from launch.stopping import StopRule
    from param_servers.server import ParameterServer

    plan, parameters = initial_parameters(place.config)
    rendezvous = Rendezvous(place.folder, place.config.exchange.join_timeout_s)
    metrics = MetricsWriter(place.folder, "server", place.rank, place.incarnation)
    server = ParameterServer(
        shard=place.rank,
        plan=plan,
        initial_parameters=parameters,
        optimizer_config=place.config.optimizer,
        exchange_config=place.config.exchange,
        resolve=rendezvous.address_of_server,
        publish_address=rendezvous.publish_server(place.rank, place.incarnation),
        secret=place.folder.secret(),
        checkpoint_dir=place.folder.checkpoints,
        on_report=metrics.server,
        on_event=metrics.event,
        should_stop=StopRule(place.folder, place.config),
    )
    try:
        return server.run()
    finally:
        metrics.close()


def run_worker_role(place: Place) -> str:
    """Step environments and compute gradients until the run ends; returns the reason it ended."""
    from dba3c.construction import build_agent, spaces_of
    from dba3c.environments.factory import make_vector_environment
    from dba3c.environments.seeding import worker_seed
    from dba3c.metrics import MetricsWriter
    from dba3c.rollout import Collector
    from dba3c.worker import run_worker
    from launch.exchanges import connect

    config = place.config
    seed = worker_seed(config.run.seed, place.rank, place.incarnation)
    environments = make_vector_environment(config.environment, config.environment.envs_per_worker, seed)
    agent = build_agent(config, spaces_of(config))
    metrics = MetricsWriter(place.folder, "worker", place.rank, place.incarnation)
    try:
        exchange = connect(place.folder, config, agent.layout, place.rank, place.incarnation)
        try:
            collector = Collector(environments, agent, config.algorithm.rollout_length, seed)
            return run_worker(
                config, agent, collector, exchange, metrics, rank=place.rank, incarnation=place.incarnation
            )
        finally:
            exchange.close()
    finally:
        metrics.close()
        environments.close()


def run_monitor_role(place: Place) -> str:
    """Read the metrics of all, feed the trackers, decide when the score is reached."""
    from dba3c.monitor.monitor import run_monitor

    return run_monitor(place.folder, place.config)


def run_evaluator_role(place: Place) -> str:
    """Play full games with each new checkpoint."""
    from dba3c.evaluation import run_evaluator

    return run_evaluator(place.folder, place.config, place.rank)


def run_recorder_role(place: Place) -> str:
    """Film a game of every k-th checkpoint."""
    from dba3c.recording import run_recorder

    return run_recorder(place.folder, place.config, place.rank)


ROLES: dict[str, Callable[[Place], str]] = {
    "server": run_server_role,
    "worker": run_worker_role,
    "monitor": run_monitor_role,
    "evaluator": run_evaluator_role,
    "recorder": run_recorder_role,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Be the role that the arguments name; 0 when the run ended as asked."""
    parser = argparse.ArgumentParser(prog="python -m launch.roles")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--role", required=True, choices=sorted(ROLES))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--incarnation", type=int, default=0)
    parser.add_argument("--launch-id", default="")
    arguments = parser.parse_args(argv)
    name = f"{arguments.role} {arguments.rank}"
    try:
        folder = RunFolder.open(arguments.run_dir, wait_s=30.0, launch_id=arguments.launch_id)
        stop_on_signal(folder, name)
        place = Place(folder, TrainConfig.from_json(folder.config_text()), arguments.rank, arguments.incarnation)
        reason = play(arguments.role, place)
    except (UserError, ConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return USER_ERROR_EXIT
    except ParamServersError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return RUN_BROKEN_EXIT
    print(f"{name}: {reason}", flush=True)
    return 0


def play(role: str, place: Place) -> str:
    """Run the role with one compute thread: a worker per core is faster than threads that wait for each other."""
    import torch

    torch.set_num_threads(1)
    return ROLES[role](place)


def stop_on_signal(folder: RunFolder, name: str) -> None:
    """SIGTERM asks the whole run to end at a step boundary; SIGINT is the launcher's, which does the same."""

    def ask(signum: int, frame: Any) -> None:
        del frame
        folder.request_stop(f"{signal.Signals(signum).name} at {name}")

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
