"""Learning proofs of mode worker, seeded, one worker in this thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import build_model, initial_parameters, spaces_of
from dba3c.config import NetworkConfig, TrainConfig, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.errors import UserError
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from dba3c.workers.worker import run_worker
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.optim import ClippedExchange
from param_servers.replica import LocalExchange
from tests.integration.runs import records


def learn(config: TrainConfig, agent_steps: int, folder: Path) -> list[dict[str, Any]]:
    """Train on ``agent_steps``; all records."""
    environments = make_vector_environment(config.environment, config.environment.envs_per_worker, seed=1)
    agent, plan, parameters = build_model(config, spaces_of(config))
    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=config.optimizer,
        exchange_config=config.exchange,
        should_stop=lambda step, data_points: "enough" if data_points >= agent_steps else None,
    )
    clipped = ClippedExchange(exchange, plan.layout, config.optimizer)
    (folder / "metrics").mkdir(exist_ok=True, parents=True)
    metrics = MetricsWriter(RunFolder(folder), "worker", 0)
    try:
        assert run_worker(config, agent, environments, clipped, metrics) == "enough"
    finally:
        metrics.close()
        exchange.close()
        environments.close()
    return records(folder, "worker", 0)


def scores(found: list[dict[str, Any]]) -> list[float]:
    return [record["score"] for record in found if record["kind"] == "episode"]


def cartpole(algorithm: AlgorithmConfig, learning_rate: str, envs: int) -> TrainConfig:
    return TrainConfig(
        environment=EnvironmentConfig(env_id="CartPole-v1", envs_per_worker=envs),
        network=NetworkConfig(network="mlp"),
        algorithm=algorithm,
        optimizer=OptimizerConfig(optimizer="adam", learning_rate=learning_rate, epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="local"),
    )


def test_ppo_learns_cartpole(tmp_path: Path) -> None:
    algorithm = AlgorithmConfig(algorithm="ppo", rollout_length=64, trace_lambda=0.95, entropy_cost="0.0")
    found = learn(cartpole(algorithm, "1e-3", envs=8), 60_000, tmp_path)
    assert np.mean(scores(found)[:20]) < 60
    assert np.mean(scores(found)[-20:]) > 300
    steps = [record for record in found if record["kind"] == "step"]
    # 16 gradients a rollout, and each step is data once
    assert sum(record.get("accepted", 0) for record in steps) >= 16 * (60_000 // (64 * 8))
    assert sum(record.get("data_points", 0) for record in steps) <= sum(record["agent_steps"] for record in steps)


def test_a_worker_with_memory_answers_what_it_saw(tmp_path: Path) -> None:
    config = TrainConfig(
        environment=EnvironmentConfig(env_id="tests.integration.games:make_memory_cue", envs_per_worker=16),
        network=NetworkConfig(network="mlp_lstm"),
        algorithm=AlgorithmConfig(algorithm="vtrace", rollout_length=12, entropy_cost="0.01"),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="3e-3", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="local"),
    )
    assert np.mean(scores(learn(config, 30_000, tmp_path))[-200:]) > 0.95


def test_what_a_worker_cannot_learn_by_is_refused() -> None:
    with pytest.raises(UserError, match="mode worker cannot learn by r2d2"):
        TrainConfig(algorithm=AlgorithmConfig(algorithm="r2d2"))
    with pytest.raises(UserError, match="choose a network without _lstm"):
        TrainConfig(algorithm=AlgorithmConfig(algorithm="ppo"), network=NetworkConfig(network="mlp_lstm"))
    TrainConfig(algorithm=AlgorithmConfig(algorithm="ppo"), network=NetworkConfig(network="mine:without_lstm"))


def test_seeds_that_differ_beyond_32_bits_give_other_first_parameters() -> None:
    config = TrainConfig(environment=EnvironmentConfig(env_id="CartPole-v1"), network=NetworkConfig(network="mlp"))
    seeded = (replace_options(config, seed=seed) for seed in (1, 2, 1 + 2**32))
    first, other, far = (initial_parameters(each)[1].tolist() for each in seeded)
    assert first != far and first != other
