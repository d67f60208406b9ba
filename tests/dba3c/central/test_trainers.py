"""From unrolls to gradients: what the learner computes is the loss of what was seen and done, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dba3c.central.assembly import build_network, build_policy, build_trainer
from dba3c.central.config import CentralConfig, ReplayConfig
from dba3c.central.trainers import replay
from dba3c.central.unroll_store import batch_of
from dba3c.config import AlgorithmConfig, NetworkConfig, TrainConfig
from dba3c.construction import spaces_of
from dba3c.environments import EnvironmentConfig
from dba3c.metrics import Sections
from param_servers.config import ExchangeConfig
from param_servers.exchange import Pull
from tests.dba3c.central.in_process import InProcessServing

CARTPOLE = TrainConfig(
    environment=EnvironmentConfig(env_id="CartPole-v1"),
    network=NetworkConfig(network="mlp"),
    algorithm=AlgorithmConfig(algorithm="vtrace", entropy_cost="0.01"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=6, batch_unrolls=4),
)
MEMORY = replace(
    CARTPOLE,
    environment=EnvironmentConfig(env_id="tests.integration.games:make_memory_cue"),
    network=NetworkConfig(network="mlp_lstm"),
)


@pytest.mark.parametrize("config", [CARTPOLE, MEMORY], ids=["feed-forward", "lstm"])
def test_while_the_weights_are_those_that_acted_replaying_gives_the_probabilities_of_acting(
    config: TrainConfig,
) -> None:
    agent = build_network(config, spaces_of(config))
    serving = InProcessServing(config, build_policy(config, agent, spaces_of(config), seed=3))
    for _ in range(6):  # over unrolls' borders and episodes' ends
        batch = batch_of(serving.collect(2, Sections()))
        rollout = replay(agent, batch)  # type: ignore[arg-type]
        log_probs = agent.policy(rollout.policy_logits).log_prob(rollout.actions)  # type: ignore[attr-defined]
        torch.testing.assert_close(log_probs.detach(), batch.behaviour_log_probs, rtol=1e-4, atol=1e-5)
    assert (~batch.valid).sum() >= 0
    serving.close(None)


def test_the_gradient_is_that_of_the_vtrace_loss_written_out() -> None:
    agent = build_network(CARTPOLE, spaces_of(CARTPOLE))
    serving = InProcessServing(CARTPOLE, build_policy(CARTPOLE, agent, spaces_of(CARTPOLE), seed=3))
    unrolls = serving.collect(2, Sections())
    batch = batch_of(unrolls)
    newer = agent.layout.flatten(agent.network) + 0.05 * torch.randn(agent.layout.numel)
    agent.load(newer)
    trainer = build_trainer(CARTPOLE, agent, spaces_of(CARTPOLE), range(1), seed=0)
    assert not trainer.owes
    trainer.take(unrolls)
    assert trainer.owes
    update = trainer.update(Pull(newer, step=4, data_points=0))
    assert not trainer.owes
    assert update.data_points == int(batch.valid.sum())
    assert update.numbers["policy_lag_p50"] == 5  # weights of version −1 acted, those of step 4 learn
    gradient = update.gradient.clone()

    logits, values = (part.unflatten(0, (7, 4)) for part in agent.network(batch.observation.flatten(0, 1))[:2])
    log_pi = logits[:6].log_softmax(-1)
    taken = log_pi.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    ratio = (taken - batch.behaviour_log_probs).exp().clamp(max=1).detach().numpy() * batch.valid.numpy()
    v, r = values.detach().numpy(), batch.rewards.numpy()
    ended, valid = batch.terminated.numpy(), batch.valid.numpy()
    correction, advantage = np.zeros((7, 4), np.float32), np.zeros((6, 4), np.float32)
    for t in reversed(range(6)):
        discount = 0.99 * ~ended[t]
        trace = discount * (~batch.truncated[t].numpy() & valid[t])
        error = r[t] + discount * v[t + 1] - v[t]
        advantage[t] = ratio[t] * (error + trace * correction[t + 1])
        correction[t] = ratio[t] * error + trace * ratio[t] * correction[t + 1]
    target, weight = torch.from_numpy(v[:6] + correction[:6]), batch.valid / batch.valid.sum()
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    loss = (-(taken * torch.from_numpy(advantage)) + 0.25 * (values[:6] - target).square() - 0.01 * entropy) * weight
    torch.testing.assert_close(gradient, agent.gradient_of(loss.sum()), rtol=1e-4, atol=1e-6)
    serving.close(None)


def test_r2d2_keeps_a_place_for_every_environment_and_restarts_broken_streams() -> None:
    config = replace(
        MEMORY,
        algorithm=AlgorithmConfig(algorithm="r2d2"),
        replay=ReplayConfig(
            replay_capacity=4000, replay_start=1, burn_in=2, memory_size=8, dueling_size=8, replay_batch=4
        ),
    )
    spaces = spaces_of(config)
    network = build_network(config, spaces)
    serving = InProcessServing(config, build_policy(config, network, spaces, seed=3))
    trainer = build_trainer(config, network, spaces, range(1), seed=0)
    for _ in range(8):
        unrolls = serving.collect(1, Sections())
        trainer.take(unrolls)
        serving.service.store.release(unrolls)
    assert trainer.owes
    update = trainer.update(Pull(network.layout.flatten(network.network), 0, 0))
    assert torch.isfinite(update.gradient).all() and update.gradient.abs().sum() > 0
    assert update.data_points > 0
    serving.close(None)
