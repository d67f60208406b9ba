"""Invariant 9: frames stepped, agent steps and data points that entered an update: three numbers, each counted once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import Spaces, build_model, build_policy, spaces_of
from dba3c.central.learner import build_trainer, run_learner
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import NetworkConfig, RunConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.protocol import EnvironmentFailed, Transition
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.ending import StopRule, frames_before_learning
from dba3c.runs.folder import RunFolder
from dba3c.workers.worker import run_worker
from param_servers.config import ExchangeConfig
from param_servers.exchange import Pull, Receipt, RunStopped
from param_servers.replica import LocalExchange
from tests.dba3c.central.in_process import InProcessServing
from tests.dba3c.environments.counting_game import CONFIG, Counting, raising, unmakable
from tests.integration.runs import records

ENVS, LENGTH, ROLLOUTS = 3, 5, 40


class RandomFrames:
    """An environment's transitions, as if it drew 2, 3 or 4 frames for each step; keeps what it said."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._environments = make_vector_environment(config, ENVS, seed=1)
        self._random = np.random.default_rng(0)
        self.frames: list[np.ndarray] = []
        self.num_envs = ENVS
        self.observation_space, self.action_space = (
            self._environments.observation_space,
            self._environments.action_space,
        )

    def reset(self) -> np.ndarray:
        return self._environments.reset()

    def step(self, actions: np.ndarray) -> Transition:
        transition = self._environments.step(actions)
        self.frames.append(transition.frames * self._random.integers(2, 5, size=ENVS))
        return transition._replace(frames=self.frames[-1])

    def close(self) -> None:
        self._environments.close()


class EveryThirdIsLate:
    """An exchange that answers every third gradient as stale, and ends the run instead of answering the last."""

    def __init__(self, parameters: torch.Tensor, pushes: int) -> None:
        self._parameters, self._pushes = parameters, pushes
        self.pushed, self.accepted = 0, 0

    def pull(self) -> Pull:
        return Pull(self._parameters, self.pushed, self.accepted)

    def push(self, gradient: torch.Tensor, step: int, data_points: int) -> Receipt:
        self.pushed += 1
        if self.pushed == self._pushes:
            raise RunStopped("enough")
        if self.pushed % 3 == 0:
            return Receipt(False, self.pushed, "stale")
        self.accepted += data_points
        return Receipt(True, self.pushed)

    def close(self) -> None: ...


@pytest.mark.parametrize("algorithm", ["actor_critic", "ppo"])
def test_a_worker_counts_what_was_stepped_whatever_became_of_it(algorithm: Any, tmp_path: Path) -> None:
    config = TrainConfig(
        environment=EnvironmentConfig(env_id="CartPole-v1"),
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(algorithm=algorithm, rollout_length=LENGTH, ppo_epochs=2, ppo_minibatches=2),
        exchange=ExchangeConfig(exchange="local"),
    )
    environments = RandomFrames(config.environment)
    agent, _, parameters = build_model(config, spaces_of(config))
    gradients = 4 if algorithm == "ppo" else 1
    exchange = EveryThirdIsLate(parameters, ROLLOUTS * gradients)
    (tmp_path / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(tmp_path), "worker", 0)
    assert run_worker(config, agent, environments, exchange, metrics) == "enough"
    metrics.close()

    found = [record for record in records(tmp_path, "worker", 0) if record["kind"] == "step"]
    totals = {name: sum(r.get(name, 0) for r in found) for name in ("agent_steps", "frames", "data_points")}
    stepped = np.stack(environments.frames)
    resets = int((stepped == 0).sum())
    assert len(stepped) == ROLLOUTS * LENGTH and resets > 5
    assert totals["agent_steps"] == ENVS * ROLLOUTS * LENGTH - resets
    assert totals["frames"] == int(stepped.sum())
    assert totals["data_points"] == exchange.accepted < totals["agent_steps"]


@pytest.mark.parametrize("algorithm", ["actor_critic", "ppo"])
def test_what_a_worker_played_before_its_environment_was_given_up_is_written_down(
    algorithm: Any, tmp_path: Path
) -> None:
    config = TrainConfig(
        environment=CONFIG,
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(algorithm=algorithm, rollout_length=100, ppo_epochs=1, ppo_minibatches=1),
        exchange=ExchangeConfig(exchange="local"),
    )
    makers = [lambda: Counting(length=10), lambda: Counting(length=200, fault=raising, bad_at=120)]
    makers += [lambda: Counting(fault=raising, bad_at=1), *[unmakable] * 2]
    environments = LoopVectorEnvironment(CONFIG, lambda: makers.pop(0)(), 2, 7)
    agent, _, parameters = build_model(config, Spaces(environments.observation_space, environments.action_space))
    (tmp_path / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(tmp_path), "worker", 0)
    with pytest.raises(EnvironmentFailed, match="given up after 2 restarts"):
        run_worker(config, agent, environments, EveryThirdIsLate(parameters, 10), metrics)
    metrics.close()

    found = records(tmp_path, "worker", 0)
    steps = [record for record in found if record["kind"] == "step"]
    totals = {name: sum(r.get(name, 0) for r in steps) for name in ("agent_steps", "frames", "data_points")}
    # the second breaks at 120, is reset at 121, and is given up at 122; every eleventh step of the first is a reset
    assert totals["agent_steps"] == totals["frames"] == (121 - 11) + 119
    assert totals["data_points"] == (100 - 9) + 100
    assert [record["score"] for record in found if record["kind"] == "episode"] == [100.0] * 11
    lines = [(record["event"], record["step"], record["message"]) for record in found if record["kind"] == "event"]
    assert [line[:2] for line in lines] == [("environment_restarted", 1)] * 2
    assert "step 120): RuntimeError: the physics exploded second line; restart 1 of 2" in lines[0][2]
    assert "step 1): RuntimeError: the physics exploded second line; restart 2 of 2" in lines[1][2]


def test_restarts_before_the_first_step_of_a_worker_that_gives_up_there_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(
        environment=CONFIG,
        network=NetworkConfig(network="mlp"),
        exchange=ExchangeConfig(exchange="local"),
    )
    environments = LoopVectorEnvironment(CONFIG, Counting, 2, 7)
    agent, _, parameters = build_model(config, Spaces(environments.observation_space, environments.action_space))
    monkeypatch.setattr(Counting, "reset", lambda game, **how: raising(None, None))  # its simulator is down
    (tmp_path / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(tmp_path), "worker", 0)
    with pytest.raises(EnvironmentFailed, match="given up after 2 restarts"):
        run_worker(config, agent, environments, EveryThirdIsLate(parameters, 10), metrics)
    metrics.close()
    told = [record for record in records(tmp_path, "worker", 0) if record["kind"] == "event"]
    assert [record["event"] for record in told] == ["environment_restarted"] * 2


@pytest.mark.parametrize(
    ("frame_skip", "points"), [(4, 250), ((2, 3), 400), ((3, 4), 286), ((2, 5), 286), ((2, 4), 334)]
)
def test_a_run_ends_with_the_first_data_point_that_makes_its_total_of_frames(
    frame_skip: Any, points: int, tmp_path: Path
) -> None:
    config = TrainConfig(environment=EnvironmentConfig(frame_skip=frame_skip))
    config = TrainConfig.from_json(config.to_json().replace('"total_frames": null', '"total_frames": 1000'))
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder:
        rule = StopRule(folder, config)
        assert rule(1, points - 1) is None
        assert "frames trained on" in str(rule(2, points))


REPLAYED = TrainConfig(
    environment=EnvironmentConfig(env_id="Pendulum-v1"),
    algorithm=AlgorithmConfig(algorithm="sac"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=2, actor_groups=1, unroll_length=5),
    replay=ReplayConfig(replay_start=10_000, hidden_size=8),
    run=RunConfig(total_frames=3000),
)


def test_a_run_whose_replay_takes_more_frames_than_were_asked_for_says_so(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", REPLAYED.to_json()) as folder:
        reason = StopRule(folder, REPLAYED)(12, 3000)
    assert reason == "3,000 frames trained on; 10,000 had filled the replay before the first update"


def test_a_replay_of_sequences_begins_when_environments_can_have_completed_one() -> None:
    few = replace(REPLAYED, algorithm=AlgorithmConfig(algorithm="r2d2"))
    assert frames_before_learning(few) == 10_000
    many = replace(few, central=replace(few.central, envs_per_actor=2048, unroll_length=100))
    assert frames_before_learning(many) == 2048 * 200  # 40 steps burn in and 100 train, of unrolls of 100


def test_a_run_that_ends_before_its_first_update_says_so(tmp_path: Path) -> None:
    spaces = spaces_of(REPLAYED)
    network, plan, parameters = build_model(REPLAYED, spaces)
    looks = iter(range(10))
    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=REPLAYED.optimizer,
        exchange_config=REPLAYED.exchange,
        should_stop=lambda step, data_points: None if next(looks, None) is not None else "SIGINT",
    )
    (tmp_path / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(tmp_path), "learner", 0)
    serving = InProcessServing(REPLAYED, build_policy(REPLAYED, network, spaces, seed=1))
    trainer = build_trainer(REPLAYED, network, spaces, range(1), seed=2)
    assert run_learner(REPLAYED, trainer, serving, exchange, metrics) == "SIGINT"
    metrics.close()
    exchange.close()
    (event,) = [record for record in records(tmp_path, "learner", 0) if record["kind"] == "event"]
    assert event["message"].endswith("the first update, while the replay was filling: it begins with 10,000 frames")
