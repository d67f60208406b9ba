"""Presets of environment families: Google Research Football, ViZDoom, MuJoCo."""

from __future__ import annotations

from dba3c.config import AlgorithmConfig, NetworkConfig, RunConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.families import stop_score
from dba3c.errors import UserError
from param_servers.config import ExchangeConfig, OptimizerConfig

FAMILY_PRESETS = {"football": "football", "vizdoom": "vizdoom", "atari": "breakout"}
"""Which preset fits a family when none is named; `fitting_preset` knows the rest."""


def football(env_id: str, cores: int) -> TrainConfig:
    """PPO on 115 numbers with checkpoint rewards: small updates (64 steps of 8 environments a worker, 4 epochs).

    γ 0.993 and the entropy cost are those of the environment's authors (arXiv 1907.11180). For the map add
    `--football-observation extracted --network football`.
    """
    _require_family(env_id, "football")
    return TrainConfig(
        environment=EnvironmentConfig(
            env_id=env_id,
            envs_per_worker=8,
            football_observation="simple115v2",
            football_rewards="scoring,checkpoints",
        ),
        network=NetworkConfig(network="auto"),
        algorithm=AlgorithmConfig(
            algorithm="ppo", rollout_length=64, discount=0.993, trace_lambda=0.95, entropy_cost="0.003"
        ),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="5e-4", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="servers", num_workers=max(1, cores), num_servers=1),
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def vizdoom(env_id: str, cores: int) -> TrainConfig:
    """The actor-critic with an LSTM behind the small network: 10-step rollouts of 16 environments, rewards / 100.

    γ 0.97: a game of `basic` is won in ten or twenty steps, and waiting costs. Learning rate: at 1e-3, which the small
    network without memory likes, the LSTM had not learned `basic` in 785 k steps; at 3e-4 it takes 160 k.
    """
    _require_family(env_id, "vizdoom")
    workers = max(1, cores)
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, envs_per_worker=max(4, 16 // workers), reward_scale=0.01),
        network=NetworkConfig(network="small_lstm", precision="bfloat16"),
        algorithm=AlgorithmConfig(rollout_length=10, discount=0.97, trace_lambda=0.95, entropy_cost="0.005"),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="3e-4", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="servers", num_workers=workers, num_servers=1),
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def mujoco(env_id: str, cores: int) -> TrainConfig:
    """PPO with a Gaussian policy and normalised observations (arXiv 1707.06347, table 3): 10 epochs of minibatches of
    64, clip 0.2, λ 0.95, Adam 3e-4, which falls to 1e-5 here.

    The paper's 2,048 steps of one environment are 256 steps of 8 in each worker here: n workers average n minibatches.
    OpenAI Baselines also divides rewards by the running deviation of the return; here they are scaled by a constant.
    """
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, envs_per_worker=8, normalize_observations=True, reward_scale=0.1),
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(
            algorithm="ppo",
            rollout_length=256,
            trace_lambda=0.95,
            entropy_cost="0",
            ppo_epochs=10,
            ppo_minibatches=32,
        ),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="linear:3e-4->1e-5@1e6", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="servers", num_workers=max(1, cores), num_servers=1),
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def fitting_preset(env_id: str) -> str:
    """The name of the preset that fits an environment."""
    family = EnvironmentConfig(env_id=env_id).family
    if family in FAMILY_PRESETS:
        return FAMILY_PRESETS[family]
    if family == "dmlab":
        return "impala"
    return "mujoco" if family == "gymnasium" and _is_mujoco(env_id) else "classic"


def _is_mujoco(env_id: str) -> bool:
    import gymnasium

    spec = gymnasium.registry.get(env_id)
    return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")


def _require_family(env_id: str, family: str) -> None:
    """Raise `UserError` where a preset made for one family is asked to train another."""
    if EnvironmentConfig(env_id=env_id).family != family:
        raise UserError(f"the preset {family} is for {family}/<scenario>, not {env_id}: --preset classic fits any")
