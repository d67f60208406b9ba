"""What a learner writes down of its time, and of its second thread's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dba3c.algorithms.agent import FlatNetwork
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import build_model, build_policy, initial_parameters, spaces_of
from dba3c.central.inference_thread import Serving
from dba3c.central.learner import build_trainer, run_learner
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.metrics.registry import INFERENCE_THREAD_SECTIONS
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from param_servers.config import ExchangeConfig
from param_servers.replica import LocalExchange
from tests.dba3c.central.in_process import InProcessService, InProcessServing

CARTPOLE = TrainConfig(
    environment=EnvironmentConfig(env_id="CartPole-v1"),
    network=NetworkConfig(network="mlp"),
    algorithm=AlgorithmConfig(algorithm="vtrace"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=5, batch_unrolls=4),
)


def test_the_second_thread_s_time_is_told_in_shares_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dba3c.central.inference_thread.SHARES_EVERY_S", 1e-9)
    spaces = spaces_of(CARTPOLE)
    learning, acting = build_model(CARTPOLE, spaces).network, build_model(CARTPOLE, spaces).network
    service: Any = InProcessService(CARTPOLE, build_policy(CARTPOLE, acting, spaces, seed=1))
    serving = Serving(service, range(1), 60.0, learning, most_ready=2)
    plan, parameters = initial_parameters(CARTPOLE)
    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=CARTPOLE.optimizer,
        exchange_config=CARTPOLE.exchange,
        should_stop=lambda step, data_points: "enough" if step >= 20 else None,
    )
    (tmp_path / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(tmp_path), "learner", 0, window_s=1e9)
    trainer = build_trainer(CARTPOLE, learning, spaces, range(1), seed=2)
    try:
        assert run_learner(CARTPOLE, trainer, serving, exchange, metrics) == "enough"
    finally:
        metrics.close()
        exchange.close()
    lines = (tmp_path / "metrics" / "learner-0.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    spent_s = records[-1]["sections_s"]
    assert {"waiting", "learning", "pushing"} <= spent_s.keys()
    assert {"inference", "serving"}.isdisjoint(spent_s)  # it would sum to more than the wall clock
    told = {name: share for name, share in records[-1].items() if name.startswith("inference_thread_")}
    assert {"inference_thread_inference", "inference_thread_serving", "inference_thread_waiting"} <= told.keys()
    assert told.keys() <= {f"inference_thread_{name}" for name in INFERENCE_THREAD_SECTIONS}
    assert told["inference_thread_inference"] > 0


def learn(
    config: TrainConfig,
    network: FlatNetwork,
    serving: Serving,
    metrics: MetricsWriter,
    should_stop: Callable[[int, int], str | None],
) -> None:
    """Until it is "enough"."""
    plan, parameters = initial_parameters(config)
    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=config.optimizer,
        exchange_config=config.exchange,
        should_stop=should_stop,
    )
    trainer = build_trainer(config, network, spaces_of(config), range(1), seed=2)
    try:
        assert run_learner(config, trainer, serving, exchange, metrics) == "enough"
    finally:
        metrics.close()
        exchange.close()
        serving.close(None)


def test_latencies_of_a_replay_s_filling_are_not_the_first_record_s(tmp_path: Path) -> None:
    config = replace(
        CARTPOLE,
        algorithm=AlgorithmConfig(algorithm="r2d2"),
        replay=ReplayConfig(
            replay_start=200, replay_capacity=1000, replay_batch=4, burn_in=2, memory_size=8, dueling_size=8
        ),
    )
    spaces = spaces_of(config)
    network = build_model(config, spaces).network
    serving = InProcessServing(config, build_policy(config, network, spaces, seed=1))
    asked: list[int] = []

    def stop(step: int, data_points: int) -> str | None:
        slow_s = 9.0 if len(asked) < 5 else 0.001
        serving.service.report.batch(4, 4, [slow_s])
        asked.append(step)
        return "enough" if step >= 3 else None

    (tmp_path / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(tmp_path), "learner", 0)
    learn(config, network, serving, metrics, stop)
    assert asked[5:6] == [0]  # the replay was not full yet
    records = map(json.loads, (tmp_path / "metrics" / "learner-0.jsonl").read_text().splitlines())
    told = [record["inference_latency_p99_ms"] for record in records if "inference_latency_p99_ms" in record]
    assert told and max(told) < 10
