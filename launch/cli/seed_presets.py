"""Presets of other systems' recipes on this one: IMPALA's V-trace, R2D2 and SAC as in SEED RL, and PPO in workers."""

from __future__ import annotations

from dataclasses import replace

from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import AlgorithmConfig, NetworkConfig, RunConfig, TrainConfig
from dba3c.environments.atari.protocols import atari_v5
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.families import stop_score
from param_servers.config import ExchangeConfig, OptimizerConfig

ONE_LEARNER = ExchangeConfig(exchange="local")
PPO_DATA_POINTS = 10_000_000
"""Of the paper's Atari runs: 40 M frames."""


def impala(env_id: str, cores: int) -> TrainConfig:
    """V-trace with SEED's settings (arXiv 1910.06591): 32 unrolls of 20 (short games), γ 0.99, baseline cost 0.5,
    entropy cost 0.00025, Adam 4.8e-4 with β1 0 and ε 3.125e-7; its residual network, without the LSTM."""
    environment, image = _environment(env_id)
    return TrainConfig(
        environment=environment,
        network=NetworkConfig(network="resnet" if image else "auto"),
        algorithm=AlgorithmConfig(algorithm="vtrace", entropy_cost="0.00025"),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate="4.8e-4", beta1=0.0, epsilon=3.125e-7, clip_rule="none"
        ),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=max(1, cores), unroll_length=20, batch_unrolls=32),
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def r2d2(env_id: str, cores: int) -> TrainConfig:
    """R2D2 with SEED's settings (arXiv 1910.06591): 64 sequences of 40 + 100 steps, γ 0.997, 5-step returns, replay
    ratio 1.5, Adam 4.8e-4 with ε 1e-3, gradients clipped at a norm of 40.

    Rewards are not clipped: values are rescaled by h(x) instead (Kapturowski et al. 2019, section 2.3). Smaller than
    SEED's: the replay, 200,000 steps here, and the number of environments.
    """
    environment, _ = _environment(env_id)
    return TrainConfig(
        environment=replace(environment, clip_reward=False),
        algorithm=AlgorithmConfig(algorithm="r2d2", discount=0.997),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="4.8e-4", epsilon=1e-3, clip_norm=40.0),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=max(1, cores), unroll_length=100),
        replay=ReplayConfig(replay_capacity=200_000, replay_start=20_000),
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def sac(env_id: str, cores: int) -> TrainConfig:
    """SAC (arXiv 1812.05905): batch 256, a million transitions, τ 0.005, one gradient per agent step."""
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id),
        algorithm=AlgorithmConfig(algorithm="sac", discount=0.99),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="3e-4", epsilon=1e-8, clip_rule="none"),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=max(1, cores), envs_per_actor=4, unroll_length=5),
        replay=ReplayConfig(replay_batch=256, replay_ratio=256.0),
        run=RunConfig(stop_score=stop_score(env_id)),
    )


def ppo(env_id: str, cores: int) -> TrainConfig:
    """PPO as its paper plays Atari (arXiv 1707.06347, table 5): 128 steps of 8 environments, 3 epochs of 4 minibatches,
    λ 0.95, value coefficient 1, entropy 0.01, ε from 0.1 and the learning rate from 2.5e-4 to 0 in 10 M data points,
    where the run ends.

    That is one worker's; with n workers a minibatch has n × 256 samples. Not the table's: Adam's ε of 1e-5 and clipping
    the gradient at a norm of 0.5, which are OpenAI Baselines', and the sticky actions of the protocol v5.
    """
    environment, image = _environment(env_id)
    workers = max(1, cores)
    return TrainConfig(
        environment=replace(environment, envs_per_worker=8),
        network=NetworkConfig(network="nature" if image else "auto"),
        algorithm=AlgorithmConfig(
            algorithm="ppo",
            rollout_length=128,
            trace_lambda=0.95,
            value_cost=2.0,  # of ½(V − target)², where the paper has the whole square
            entropy_cost="0.01",
            policy_clip=f"linear:0.1->0@{PPO_DATA_POINTS}",
            ppo_epochs=3,
        ),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate=f"linear:2.5e-4->0@{PPO_DATA_POINTS}", epsilon=1e-5, clip_norm=0.5
        ),
        exchange=ExchangeConfig(exchange="servers", num_workers=workers, num_servers=1),
        run=RunConfig(stop_score=stop_score(env_id), total_frames=round(PPO_DATA_POINTS * environment.frames_per_step)),
    )


def _environment(env_id: str) -> tuple[EnvironmentConfig, bool]:
    """The environment, Atari by its v5 protocol, and whether it shows images."""
    environment = EnvironmentConfig(env_id=env_id)
    if environment.family == "atari":
        return atari_v5(environment), True
    return environment, environment.family in ("vizdoom", "dmlab", "football")
