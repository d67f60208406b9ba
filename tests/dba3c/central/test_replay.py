"""What learners with a replay do: when the target network follows, and how many gradients they owe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import build_model, build_policy, spaces_of
from dba3c.central.algorithm import ReplayDebt
from dba3c.central.learner import build_trainer
from dba3c.central.r2d2 import R2d2Trainer
from dba3c.central.sac import SacTrainer
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.metrics.writer import Sections
from param_servers.config import ExchangeConfig
from param_servers.exchange import Pull
from tests.dba3c.central.in_process import InProcessServing

R2D2 = TrainConfig(
    environment=EnvironmentConfig(env_id="tests.integration.games:make_memory_cue"),
    algorithm=AlgorithmConfig(algorithm="r2d2"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=6),
    replay=ReplayConfig(
        replay_capacity=4000, replay_start=1, burn_in=2, memory_size=8, dueling_size=8, replay_batch=4,
        target_every_steps=10,
    ),
)  # fmt: skip
SAC = replace(
    R2D2,
    environment=EnvironmentConfig(env_id="Pendulum-v1"),
    algorithm=AlgorithmConfig(algorithm="sac"),
    exchange=ExchangeConfig(exchange="local", checkpoint_every_steps=4),
    replay=ReplayConfig(replay_capacity=4000, replay_start=1, replay_batch=4, hidden_size=8, polyak=0.25),
)


class Life:
    """A learner's trainer with experience to learn from."""

    def __init__(self, config: TrainConfig) -> None:
        spaces = spaces_of(config)
        self.network = build_model(config, spaces).network
        serving = InProcessServing(config, build_policy(config, self.network, spaces, seed=3))
        trainer = build_trainer(config, self.network, spaces, range(1), 0)
        assert isinstance(trainer, (R2d2Trainer, SacTrainer))
        self.trainer = trainer
        for _ in range(10):
            unrolls = serving.collect(1, Sections())
            trainer.take(unrolls)
        serving.close(None)

    def update(self, step: int) -> Tensor:
        """An update at parameters that are a function of the step; the target network after it."""
        parameters = torch.full((self.network.layout.numel,), 0.01 * step)
        self.network.load(parameters)
        self.trainer.update(Pull(parameters, step, 0))
        return flat(self.trainer._target)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in module.state_dict().values()]).clone()


def test_r2d2_s_target_is_copied_where_a_period_begins_and_in_a_new_life_at_once() -> None:
    life = Life(R2D2)
    targets = {step: life.update(step) for step in range(25)}
    assert torch.equal(targets[24], targets[20]) and not torch.equal(targets[20], targets[19])
    again = Life(R2D2)
    assert torch.equal(again.update(17), flat(again.network.network))


def test_r2d2_s_reward_is_that_of_the_steps_that_train() -> None:
    life = Life(R2D2)
    update = life.trainer.update(Pull(life.network.layout.flatten(life.network.network), 0, 0))
    sequences = life.trainer._sample.sequences  # type: ignore[union-attr]
    rewards, valid = sequences.rewards[R2D2.replay.burn_in :], sequences.valid[R2D2.replay.burn_in :]
    assert rewards[valid].any() and not valid.all()
    assert update.numbers["reward_mean"] == pytest.approx(rewards[valid].mean().item())


def test_sac_s_target_moves_once_for_each_step_and_begins_as_a_copy() -> None:
    life = Life(SAC)
    first = life.update(3)
    assert torch.equal(first, flat(life.network.network.critics))
    second = life.update(7)
    share = 1 - 0.75**4  # the four steps between were other learners'
    torch.testing.assert_close(second, first + share * (flat(life.network.network.critics) - first))
    assert torch.equal(life.update(7), second)


def updates(debt: ReplayDebt) -> int:
    count = 0
    while debt.owes:
        debt.paid()
        count += 1
    return count


def test_nothing_is_owed_before_the_start() -> None:
    debt = ReplayDebt(start=100, ratio=2.0, per_update=10)
    debt.gathered(99)
    assert not debt.owes


def test_after_the_start_each_step_is_sampled_ratio_times() -> None:
    debt = ReplayDebt(start=100, ratio=2.0, per_update=10)
    debt.gathered(100)
    assert updates(debt) == 1
    debt.gathered(50)
    assert updates(debt) == 9  # 50 steps × 2 = 100 samples, 10 of them taken before
    one_by_one = 0
    for _ in range(100):
        debt.gathered(1)
        one_by_one += updates(debt)
    assert one_by_one == 20
