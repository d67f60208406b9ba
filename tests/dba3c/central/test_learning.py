"""Learning proofs, seeded, on one thread: every algorithm of central inference solves the problem it is made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import build_model, build_policy, initial_parameters, spaces_of
from dba3c.central.learner import build_trainer, run_learner
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.optim import ClippedExchange
from param_servers.replica import LocalExchange
from tests.dba3c.central.in_process import InProcessServing


def learn(config: TrainConfig, agent_steps: int, folder: Path) -> list[float]:
    """Train on ``agent_steps``; the scores of all games, in order."""
    spaces = spaces_of(config)
    network = build_model(config, spaces).network
    policy = build_policy(config, network, spaces, seed=1)
    trainer = build_trainer(config, network, spaces, range(config.central.actors), seed=2)
    serving = InProcessServing(config, policy)
    plan, parameters = initial_parameters(config)

    def enough(step: int, data_points: int) -> str | None:
        return "enough" if data_points >= agent_steps else None

    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=config.optimizer,
        exchange_config=config.exchange,
        should_stop=enough,
    )
    clipped = ClippedExchange(exchange, plan.layout, config.optimizer)
    metrics = MetricsWriter(RunFolder(folder), "learner", 0)
    (folder / "metrics").mkdir(exist_ok=True)
    try:
        assert run_learner(config, trainer, serving, clipped, metrics) == "enough"
    finally:
        metrics.close()
        exchange.close()
        serving.close(None)
    return [episode.score for episode in serving.service.episodes]


MEMORY = EnvironmentConfig(env_id="tests.integration.games:make_memory_cue")
ONE_LEARNER = ExchangeConfig(exchange="local")


@pytest.mark.slow
def test_vtrace_learns_cartpole(tmp_path: Path) -> None:
    config = TrainConfig(
        environment=EnvironmentConfig(env_id="CartPole-v1"),
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(algorithm="vtrace", entropy_cost="0.005"),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="2e-3", epsilon=1e-5, clip_norm=5.0),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=2, envs_per_actor=8, unroll_length=32, batch_unrolls=8),
    )
    scores = learn(config, 100_000, tmp_path)
    assert np.mean(scores[:20]) < 60
    assert np.mean(scores[-30:]) > 300


def memory_config(network: str) -> TrainConfig:
    return TrainConfig(
        environment=MEMORY,
        network=NetworkConfig(network=network),
        algorithm=AlgorithmConfig(algorithm="vtrace", entropy_cost="0.01"),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="3e-3", epsilon=1e-5, clip_norm=0.5),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=2, envs_per_actor=16, unroll_length=12, batch_unrolls=32),
    )


def test_vtrace_with_memory_answers_what_it_saw_and_without_cannot(tmp_path: Path) -> None:
    with_memory, without = tmp_path / "lstm", tmp_path / "mlp"
    with_memory.mkdir()
    without.mkdir()
    remembered = learn(memory_config("mlp_lstm"), 40_000, with_memory)
    guessed = learn(memory_config("mlp"), 20_000, without)
    assert np.mean(remembered[-200:]) > 0.95
    assert abs(np.mean(guessed[-500:])) < 0.2


def test_r2d2_answers_what_it_saw(tmp_path: Path) -> None:
    config = TrainConfig(
        environment=MEMORY,
        algorithm=AlgorithmConfig(algorithm="r2d2", discount=0.99),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="2e-3", epsilon=1e-3, clip_norm=10.0),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=1, envs_per_actor=16, unroll_length=12, actor_groups=1),
        replay=ReplayConfig(
            replay_capacity=20_000, replay_start=2000, replay_batch=32, replay_ratio=6.0, burn_in=6, n_step=5,
            target_every_steps=50, memory_size=32, dueling_size=32,
        ),
    )  # fmt: skip
    scores = learn(config, 20_000, tmp_path)
    assert np.mean(scores[:200]) < 0.5
    assert np.mean(scores[-300:]) > 0.7


@pytest.mark.slow
def test_sac_swings_the_pendulum_up(tmp_path: Path) -> None:
    config = TrainConfig(
        environment=EnvironmentConfig(env_id="Pendulum-v1"),
        algorithm=AlgorithmConfig(algorithm="sac", discount=0.98),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="2e-3", epsilon=1e-8, clip_rule="none"),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=5, actor_groups=1),
        replay=ReplayConfig(
            replay_capacity=20_000, replay_start=1000, replay_batch=128, replay_ratio=96.0, polyak=0.02, hidden_size=64
        ),
    )
    scores = learn(config, 8000, tmp_path)
    assert np.mean(scores[:5]) < -800
    assert np.mean(scores[-8:]) > -300
