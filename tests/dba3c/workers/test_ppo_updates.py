"""PPO from the first observation to the last parameter, against the same written plainly with torch's own parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import build_model, spaces_of
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.metrics.writer import MetricsWriter
from dba3c.networks.distributions import Categorical
from dba3c.runs.folder import RunFolder
from dba3c.workers.worker import rollout_generator, run_worker
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.optim import ClippedExchange
from param_servers.replica import LocalExchange

ENVS, T, EPOCHS, PARTS, ROLLOUTS, CLIP, LAMBDA, DISCOUNT = 5, 16, 3, 4, 4, 0.02, 0.9, 0.95


class Endings(gymnasium.Env):
    """Ends by itself or by its time limit, after few steps."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        terminated = bool(self.np_random.random() < 0.1)
        reward = float(self.np_random.normal() + action)
        return self._observation(), reward, terminated, self._steps >= 6 and not terminated, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def configuration() -> TrainConfig:
    return TrainConfig(
        environment=EnvironmentConfig(env_id=f"{__name__}:Endings", envs_per_worker=ENVS),
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(
            algorithm="ppo", rollout_length=T, discount=DISCOUNT, trace_lambda=LAMBDA, value_cost=0.5,
            entropy_cost="linear:0.05->0@400", policy_clip=str(CLIP), ppo_epochs=EPOCHS, ppo_minibatches=PARTS,
        ),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate="linear:1e-2->1e-3@400", epsilon=1e-5, clip_norm=0.5
        ),
        exchange=ExchangeConfig(exchange="local"),
    )  # fmt: skip


def by_a_worker(config: TrainConfig, folder: Path) -> torch.Tensor:
    """[P] after as many updates as ROLLOUTS give."""
    agent, plan, parameters = build_model(config, spaces_of(config))
    environments = make_vector_environment(config.environment, ENVS, seed=1)
    steps = ROLLOUTS * EPOCHS * PARTS
    exchange = LocalExchange(
        layout=plan.layout,
        initial_parameters=parameters,
        optimizer_config=config.optimizer,
        exchange_config=config.exchange,
        should_stop=lambda step, data_points: "enough" if step >= steps else None,
    )
    (folder / "metrics").mkdir()
    metrics = MetricsWriter(RunFolder(folder), "worker", 0)
    try:
        run_worker(config, agent, environments, ClippedExchange(exchange, plan.layout, config.optimizer), metrics)
        return exchange.replica.shard.parameters.clone()
    finally:
        metrics.close()
        exchange.close()
        environments.close()


def linear(begin: float, end: float, data_points: int) -> float:
    return begin + (end - begin) * min(1.0, data_points / 400)


def plainly(config: TrainConfig) -> tuple[torch.Tensor, int, int]:
    """[P]; and how many steps were cut by the time limit, how many by themselves."""
    agent, plan, parameters = build_model(config, spaces_of(config))
    agent.load(parameters)
    network, cut, ended = agent.network, 0, 0
    optimizer = torch.optim.Adam(network.parameters(), lr=0.0, eps=1e-5)
    environments = make_vector_environment(config.environment, ENVS, seed=1)
    observation = torch.from_numpy(environments.reset())
    step = data_points = 0
    for _ in range(ROLLOUTS):
        generator, rows, values = rollout_generator(config.run.seed, 0, 0, 0, step), [], []
        for _ in range(T):
            with torch.no_grad():
                logits, value, _ = network(observation)
            action = Categorical(logits).sample(generator)
            done = environments.step(action.numpy())
            log_prob = torch.distributions.Categorical(logits=logits).log_prob(action)
            ends = (torch.from_numpy(part) for part in (done.reward, done.terminated, done.truncated, done.valid))
            rows.append((observation, action, log_prob, *ends))
            values.append(value)
            observation = torch.from_numpy(done.observation)
        with torch.no_grad():
            values.append(network(observation)[1])
        observations, actions, old, rewards, terminated, truncated, valid = (
            torch.stack(column) for column in zip(*rows, strict=True)
        )
        advantages = torch.zeros(T, ENVS)
        for env in range(ENVS):
            after = 0.0
            for t in reversed(range(T)):
                if not valid[t, env]:
                    after = 0.0
                    continue
                following = 0.0 if terminated[t, env] else float(values[t + 1][env])
                error = float(rewards[t, env]) + DISCOUNT * following - float(values[t][env])
                goes_on = not (terminated[t, env] or truncated[t, env])
                after = error + (DISCOUNT * LAMBDA * after if goes_on else 0.0)
                advantages[t, env] = after
        targets = (advantages + torch.stack(values[:-1])).flatten()
        cut, ended = cut + int(truncated.sum()), ended + int(terminated.sum())
        flat = [part.flatten(0, 1) for part in (observations, actions, old, valid, advantages)]
        for epoch in range(EPOCHS):
            for part in torch.randperm(T * ENVS, generator=generator).chunk(PARTS):
                seen, acted, before, counts, gained = (column[part] for column in flat)
                logits, value, _ = network(seen[counts])
                policy = torch.distributions.Categorical(logits=logits)
                gained = (gained[counts] - gained[counts].mean()) / (gained[counts].std() + 1e-8)
                ratio = (policy.log_prob(acted[counts]) - before[counts]).exp()
                objective = torch.min(ratio * gained, ratio.clip(1 - CLIP, 1 + CLIP) * gained)
                squares = (value - targets[part][counts]).square()
                cost = linear(0.05, 0.0, data_points)
                optimizer.zero_grad()
                ((-objective + 0.25 * squares - cost * policy.entropy()).sum() / len(part)).backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                optimizer.param_groups[0]["lr"] = linear(1e-2, 1e-3, data_points)
                optimizer.step()
                step += 1
                data_points += int(counts.sum()) if epoch == 0 else 0
    environments.close()
    return plan.layout.flatten(network), cut, ended


def test_a_workers_ppo_is_that_of_a_plain_loop_with_torchs_own_adam_and_clipping(tmp_path: Path) -> None:
    config = configuration()
    expected, cut, ended = plainly(config)
    assert cut > 10
    assert ended > 10
    found = by_a_worker(config, tmp_path)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)
