"""Presets: functions from an environment id and the number of cores to a complete configuration."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

from dba3c.central_config import CentralConfig
from dba3c.config import AlgorithmConfig, NetworkConfig, RunConfig, TrainConfig
from dba3c.environments.atari.protocols import atari_2017, atari_v4_no_sticky
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.families import stop_score
from dba3c.errors import UserError
from launch.cli.environment_presets import fitting_preset, football, mujoco, vizdoom
from launch.cli.seed_presets import impala, ppo, r2d2, sac
from param_servers.config import ExchangeConfig, OptimizerConfig

SMALL_CLUSTER_WORKERS = 8
"""From this many workers on, one in twelve is a backup worker (the 2017 system: 5 of 65)."""


def breakout(env_id: str, cores: int) -> TrainConfig:
    """Atari tuned for a small machine: small updates of 160 samples, the small network in bfloat16, no sticky actions.

    Few samples in an update and many updates learn faster per frame than large batches, so environments are divided
    among the workers: 32 in all.
    """
    exchange = local_servers(cores)
    environment = EnvironmentConfig(env_id=env_id, envs_per_worker=max(4, 32 // exchange.gradients_per_step))
    return TrainConfig(
        environment=replace(atari_v4_no_sticky(environment), episodic_life=True),
        network=NetworkConfig(network="small", precision="bfloat16"),
        algorithm=AlgorithmConfig(rollout_length=5, entropy_cost="0.01"),
        optimizer=OptimizerConfig(
            optimizer="rmsprop", learning_rate="linear:7e-4->7e-5@20e6", decay=0.99, epsilon=1e-5, clip_norm=0.5
        ),
        exchange=exchange,
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def dba3c_paper(env_id: str, cores: int) -> TrainConfig:
    """The recipe of 2017 (arXiv 1801.02852): RGB, 5-step returns, Adam 1e-3, β 0.8 and 0.75, clipping by each tensor's
    average norm, entropy 0.01, the DBA3C network, sticky actions and random frame skip, 60 of 65 workers' gradients.

    But for the batch: a worker's was 32 samples out of a queue that 10 simulators filled, so 1,920 made an update. Here
    it is one rollout, 5 steps of 6 environments: 30 samples, 1,800 in an update.
    """
    del cores  # the paper's shape; --workers, --servers and --backup-workers change it
    return TrainConfig(
        environment=atari_2017(EnvironmentConfig(env_id=env_id, envs_per_worker=6)),
        network=NetworkConfig(network="dba3c"),
        algorithm=AlgorithmConfig(rollout_length=5, value_cost=1.0, entropy_cost="0.01"),
        optimizer=OptimizerConfig(
            optimizer="adam",
            learning_rate="1e-3",
            beta1=0.8,
            beta2=0.75,
            epsilon=1e-8,
            clip_rule="average_per_tensor",
            clip_norm=0.1,
        ),
        exchange=ExchangeConfig(
            exchange="servers", num_workers=65, num_servers=4, num_backup_workers=5, sharding="greedy_by_tensor"
        ),
        run=RunConfig(stop_score=stop_score(env_id), evaluators=1, recorders=1),
    )


def classic(env_id: str, cores: int) -> TrainConfig:
    """Small problems (CartPole, LunarLander, your own): 8-step rollouts, Adam, the MLP, or the small network where
    observations are images."""
    exchange = local_servers(cores)
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, envs_per_worker=max(2, 16 // exchange.gradients_per_step)),
        network=NetworkConfig(network="auto"),
        algorithm=AlgorithmConfig(rollout_length=8, trace_lambda=0.95, entropy_cost="0"),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate="linear:3e-3->3e-4@400000", epsilon=1e-5, clip_norm=0.5
        ),
        exchange=exchange,
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def with_central_inference(config: TrainConfig, cores: int) -> TrainConfig:
    """The same agent on the same environments with central inference: an actor per core, one learner, V-trace.

    The learner answers in one thread and learns in another, and on a small machine lives on what the actors leave.
    """
    if config.central.mode == "central":
        return config
    actors = max(1, cores)
    envs = config.environment.envs_per_worker * config.exchange.gradients_per_step
    return replace(
        config,
        algorithm=replace(config.algorithm, algorithm="vtrace", trace_lambda=1.0),
        exchange=replace(config.exchange, exchange="local", num_workers=1, num_gradients=None, num_backup_workers=None),
        central=CentralConfig(
            mode="central",
            actors=actors,
            envs_per_actor=max(2, envs // actors // 2 * 2),
            batch_unrolls=16,
        ),
    )


def local_servers(cores: int) -> ExchangeConfig:
    """A worker per core, 2 servers, and backup workers where there are enough workers to spare."""
    workers = max(1, cores)
    backup = workers // 12 + 1 if workers >= SMALL_CLUSTER_WORKERS else 0
    return ExchangeConfig(exchange="servers", num_workers=workers, num_servers=2, num_backup_workers=backup)


PRESETS: dict[str, Callable[[str, int], TrainConfig]] = {
    "impala": impala,
    "r2d2": r2d2,
    "sac": sac,
    "ppo": ppo,
    "breakout": breakout,
    "dba3c_paper": dba3c_paper,
    "classic": classic,
    "football": football,
    "vizdoom": vizdoom,
    "mujoco": mujoco,
}


DEFAULT_ENVIRONMENTS = {
    "breakout": "ALE/Breakout-v5",
    "dba3c_paper": "ALE/Breakout-v5",
    "classic": "CartPole-v1",
    "impala": "ALE/Breakout-v5",
    "r2d2": "ALE/Breakout-v5",
    "sac": "Pendulum-v1",
    "ppo": "ALE/Breakout-v5",
    "football": "football/academy_empty_goal_close",
    "vizdoom": "vizdoom/basic",
    "mujoco": "HalfCheetah-v5",
}


def preset(name: str | None, env_id: str | None, cores: int) -> TrainConfig:
    """The named preset for an environment; without a name the one that fits it, without an environment its own.

    Raises:
        UserError: no such preset (the close ones are named).
    """
    if name is None:
        env_id = env_id or EnvironmentConfig().env_id
        name = fitting_preset(env_id)
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS) or list(PRESETS)
        raise UserError(f"no preset is called {name!r}; there are {', '.join(close)}")
    return PRESETS[name](env_id or DEFAULT_ENVIRONMENTS[name], cores)
