"""What learners with a replay share: target networks on disk, and how many gradients they owe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dba3c.assembly.model import build_model, spaces_of
from dba3c.central.learner import build_policy, build_trainer
from dba3c.central.r2d2 import R2d2Trainer
from dba3c.central.replay import ReplayDebt, TargetStore
from dba3c.central.sac import SacTrainer
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import AlgorithmConfig, TrainConfig
from dba3c.environments import EnvironmentConfig
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

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        self.lines: list[str] = []
        spaces = spaces_of(config)
        self.network = build_model(config, spaces).network
        serving = InProcessServing(config, build_policy(config, self.network, spaces, seed=3))
        store = TargetStore(folder, keep=3, tell=lambda event, line: self.lines.append(line))
        trainer = build_trainer(config, self.network, spaces, range(1), 0, store)
        assert isinstance(trainer, (R2d2Trainer, SacTrainer))
        self.trainer = trainer
        for _ in range(10):
            unrolls = serving.collect(1, Sections())
            trainer.take(unrolls)
            serving.service.store.release(unrolls)
        serving.close(None)

    def update(self, step: int) -> Tensor:
        """An update at parameters that are a function of the step; the target network after it."""
        parameters = torch.full((self.network.layout.numel,), 0.01 * step)
        self.network.load(parameters)
        self.trainer.update(Pull(parameters, step, 0))
        return flat(self.trainer._target)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in module.state_dict().values()]).clone()


def test_r2d2_resumes_within_a_period_with_the_target_of_its_beginning(tmp_path: Path) -> None:
    first = Life(R2D2, tmp_path)
    targets = {step: first.update(step) for step in range(25)}
    assert torch.equal(targets[24], targets[20]) and not torch.equal(targets[20], targets[19])
    second = Life(R2D2, tmp_path)
    assert torch.equal(second.update(24), targets[24])
    assert second.lines == ["at step 24: the target network is that of step 20; the replay begins empty"]
    # rolled back to a checkpoint of an earlier period
    third = Life(R2D2, tmp_path)
    assert torch.equal(third.update(17), targets[17])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0.safetensors", "step-10.safetensors"]


def test_sac_resumes_exactly_where_a_checkpoint_was_written_and_where_the_run_was_ended(tmp_path: Path) -> None:
    first = Life(SAC, tmp_path)
    targets = {step: first.update(step) for step in range(7)}
    second = Life(SAC, tmp_path)
    assert torch.equal(second.update(4), targets[4]) and torch.equal(second.update(5), targets[5])
    first.trainer.stopped()  # the gradient of step 6 was its last: the run goes on from step 7
    third = Life(SAC, tmp_path)
    assert torch.equal(third.update(7), first.update(7))


def test_without_a_target_on_disk_it_begins_as_a_copy_and_that_is_said(tmp_path: Path) -> None:
    for config in (R2D2, SAC):
        life = Life(config, tmp_path / config.algorithm.algorithm)
        target = life.update(3)
        source = life.network.network if config is R2D2 else life.network.network.critics
        assert torch.equal(target, flat(source))
        assert life.lines[0].startswith("at step 3: the target network begins as a copy of the parameters")


def test_a_torn_file_and_one_of_another_network_are_passed_over(tmp_path: Path) -> None:
    lines: list[str] = []
    store = TargetStore(tmp_path, keep=5, tell=lambda event, line: lines.append(line))
    store.save(1, nn.Linear(2, 2))
    store.save(2, nn.Linear(3, 2))
    (tmp_path / "step-3.safetensors").write_bytes(b"torn")
    assert store.restore(9, nn.Linear(2, 2)) == 1
    assert [line.split(" ")[0] for line in lines[:2]] == ["step-3.safetensors", "step-2.safetensors"]


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
