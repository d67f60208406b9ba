"""What a learner writes down of its time, and of its second thread's where it has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dba3c.assembly.model import build_model, build_policy, initial_parameters, spaces_of
from dba3c.central.inference_thread import OwnThread, Serving, SharedThread
from dba3c.central.learner import build_trainer, run_learner
from dba3c.central_config import CentralConfig
from dba3c.config import AlgorithmConfig, NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.metrics.registry import INFERENCE_THREAD_SECTIONS
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from param_servers.config import ExchangeConfig
from param_servers.replica import LocalExchange
from tests.dba3c.central.in_process import InProcessService

CARTPOLE = TrainConfig(
    environment=EnvironmentConfig(env_id="CartPole-v1"),
    network=NetworkConfig(network="mlp"),
    algorithm=AlgorithmConfig(algorithm="vtrace"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=5, batch_unrolls=4),
)


def learner_records(thread: str, folder: Path) -> list[dict[str, Any]]:
    """The step records of a short run whose inference has a thread of its own, or shares the learner's."""
    spaces = spaces_of(CARTPOLE)
    learning, acting = build_model(CARTPOLE, spaces).network, build_model(CARTPOLE, spaces).network
    service: Any = InProcessService(
        CARTPOLE, build_policy(CARTPOLE, acting if thread == "own" else learning, spaces, seed=1)
    )
    serving: Serving = SharedThread(service, range(1), 60.0)
    if thread == "own":
        serving = OwnThread(service, range(1), 60.0, learning, most_ready=2)
    plan, parameters = initial_parameters(CARTPOLE)
    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=CARTPOLE.optimizer,
        exchange_config=CARTPOLE.exchange,
        should_stop=lambda step, data_points: "enough" if step >= 20 else None,
    )
    (folder / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(folder), "learner", 0)
    trainer = build_trainer(CARTPOLE, learning, spaces, range(1), seed=2)
    try:
        assert run_learner(CARTPOLE, trainer, serving, exchange, metrics) == "enough"
    finally:
        metrics.close()
        exchange.close()
    lines = (folder / "metrics" / "learner-0.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "step"]


def test_in_one_thread_the_service_s_time_is_part_of_the_learner_s(tmp_path: Path) -> None:
    records = learner_records("shared", tmp_path)
    assert {"inference", "serving", "waiting", "learning", "pushing"} <= records[-1]["sections_s"].keys()
    assert not any(name.startswith("inference_thread") for record in records for name in record)


def test_a_second_thread_s_time_is_told_in_shares_of_its_own(tmp_path: Path) -> None:
    records = learner_records("own", tmp_path)
    assert {"inference", "serving"}.isdisjoint(records[-1]["sections_s"])  # it would sum to more than the wall clock
    told = {name: share for name, share in records[-1].items() if name.startswith("inference_thread_")}
    assert {"inference_thread_inference", "inference_thread_serving", "inference_thread_waiting"} <= told.keys()
    assert told.keys() <= {f"inference_thread_{name}" for name in INFERENCE_THREAD_SECTIONS}
    assert told["inference_thread_inference"] > 0
