"""Central inference on a GPU does what it does on the CPU. Where there is none, nothing of this is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dba3c
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.policies import Asked
from dba3c.assembly.model import build_model, build_policy, spaces_of
from dba3c.central.learner import build_trainer
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.metrics.writer import Sections
from param_servers.exchange import Pull
from tests.dba3c.central.in_process import InProcessServing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

VTRACE = TrainConfig(
    environment=EnvironmentConfig(env_id="CartPole-v1"),
    network=NetworkConfig(network="mlp"),
    algorithm=AlgorithmConfig(algorithm="vtrace"),
    central=CentralConfig(mode="central", actors=2, envs_per_actor=4, unroll_length=8, batch_unrolls=8),
)
CONFIGS = {
    "vtrace": VTRACE,
    "vtrace, lstm": replace(VTRACE, network=NetworkConfig(network="mlp_lstm")),
    "r2d2": replace(
        VTRACE,
        algorithm=AlgorithmConfig(algorithm="r2d2"),
        replay=ReplayConfig(replay_capacity=1000, replay_start=64, replay_batch=4, burn_in=4),
    ),
    "sac": replace(
        VTRACE,
        environment=EnvironmentConfig(env_id="Pendulum-v1"),
        algorithm=AlgorithmConfig(algorithm="sac"),
        replay=ReplayConfig(replay_capacity=1000, replay_start=64, replay_batch=16),
    ),
}


def gradient_of(config: TrainConfig, device: str) -> torch.Tensor:
    """The first one of the trainer, [P], of experience that the CPU's policy gathered."""
    spaces = spaces_of(config)
    acting = build_model(config, spaces)
    acting.network.load(acting.parameters)
    policy = build_policy(config, acting.network, spaces, seed=1)
    policy.load(acting.parameters, 0)
    learning = build_model(replace(config, network=replace(config.network, device=device)), spaces)
    learning.network.load(learning.parameters)
    trainer = build_trainer(config, learning.network, spaces, range(config.central.actors), seed=2)
    serving = InProcessServing(config, policy)
    while not trainer.owes:
        unrolls = serving.collect(trainer.groups_per_batch, Sections())
        trainer.take(unrolls)
    torch.manual_seed(3)
    gradient = trainer.update(Pull(parameters=learning.parameters, step=1, data_points=0)).gradient.clone()
    serving.close(None)
    return gradient


@pytest.mark.parametrize("name", ["vtrace", "vtrace, lstm", "r2d2"])  # what sac draws, each device draws otherwise
def test_the_gradient_is_the_cpus(name: str) -> None:
    expected, found = gradient_of(CONFIGS[name], "cpu"), gradient_of(CONFIGS[name], "cuda")
    assert found.device.type == "cpu"
    assert float((found - expected).norm() / expected.norm()) < 2e-3  # tf32


def test_atari_networks_decide_as_on_the_cpu() -> None:
    frames = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for network in ("small", "nature", "resnet"):
        config = TrainConfig(
            environment=EnvironmentConfig(env_id="ALE/Breakout-v5"), network=NetworkConfig(network=network)
        )
        spaces, answers = spaces_of(config), []
        for device in ("cpu", "cuda"):
            model = build_model(replace(config, network=replace(config.network, device=device)), spaces)
            policy = build_policy(config, model.network, spaces, seed=1, actions="greedy")
            policy.load(model.parameters, 0)
            decision = policy.act(Asked(frames.numpy(), policy.initial_state(8), *[None] * 2))  # type: ignore[arg-type]
            answers.append(torch.from_numpy(decision.log_probs))
        torch.testing.assert_close(answers[1], answers[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.timeout(180)
def test_a_run_trains_and_its_agent_plays(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    run = dba3c.train(
        config.environment.env_id,
        **{
            "mode": "central", "algorithm": config.algorithm.algorithm, "exchange": "local", "workers": 1,
            "actors": 2, "envs_per_actor": 4, "device": "cuda", "run_dir": tmp_path / "run",
            "total_frames": 2000, "track": (),
            **({"replay_start": 200, "replay_capacity": 1000} if "vtrace" not in name else {}),
            **({"network": config.network.network, "precision": "bfloat16"} if "vtrace" in name else {}),
        },
    )  # fmt: skip
    assert run.status == "finished", run.reason
    observation = spaces_of(config).observation.sample()
    assert spaces_of(config).action.contains(run.agent().act(observation))
