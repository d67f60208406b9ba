"""Soft actor-critic on central inference: a replay of single transitions, gradients by the replay ratio."""

import copy

import numpy as np
import torch

from dba3c.algorithms.agent import FlatNetwork
from dba3c.algorithms.sac import Transitions, UniformReplay, UniformSample, move_targets, sac_loss
from dba3c.assembly.model import Spaces
from dba3c.central.algorithm import ReplayDebt, Trainer, Update
from dba3c.central.unrolls import GroupUnroll, observations_of, side_by_side
from dba3c.central.wire import TERMINATED, VALID
from dba3c.config import TrainConfig
from dba3c.networks.sac_networks import ActionScaling
from param_servers.exchange import Pull


class SacTrainer(Trainer):
    """Keeps every transition; owes gradients by the replay ratio.

    Args:
        seed: of the sampling.
    """

    def __init__(self, config: TrainConfig, network: FlatNetwork, spaces: Spaces, seed: int) -> None:
        replay, self._network = config.replay, network
        self._batch_size = replay.replay_batch
        self._discount, self._polyak = config.algorithm.discount, replay.polyak
        self._scaling = ActionScaling.of(spaces.action)
        shape, dtype = spaces.observation.shape, spaces.observation.dtype
        assert shape is not None and dtype is not None
        self._replay = UniformReplay(replay.replay_capacity, shape, dtype, len(self._scaling.centre))
        self.memory_bytes = self._replay.memory_bytes
        self._debt = ReplayDebt(replay.replay_start, replay.replay_ratio, replay.replay_batch)
        self._target = copy.deepcopy(network.network.critics).requires_grad_(False)
        self._target_step = -1
        self._sample: UniformSample | None = None
        self._rng, self._generator = np.random.default_rng(seed), torch.Generator(network.device).manual_seed(seed)

    @property
    def owes(self) -> bool:
        return self._debt.owes

    def take(self, unrolls: list[GroupUnroll]) -> None:
        observations = observations_of(unrolls)
        flags = side_by_side(unroll.flags[1:] for unroll in unrolls)
        valid = flags & VALID != 0
        inserted = (
            observations[:-1],
            self._scaling.from_environment(side_by_side(unroll.actions for unroll in unrolls)),
            side_by_side(unroll.rewards[1:] for unroll in unrolls),
            flags & TERMINATED != 0,
            observations[1:],
            valid,
        )
        self._replay.insert(*(part.reshape(-1, *part.shape[2:]) for part in inserted))
        self._debt.gathered(int(valid.sum()))

    def update(self, pulled: Pull) -> Update:
        """See ``Trainer``. The target critics follow each committed step."""
        self._follow(pulled.step)
        self._sample = self._replay.sample(self._batch_size, self._rng)
        batch = Transitions(*(part.to(self._network.device) for part in self._sample.transitions))
        loss = sac_loss(self._network.network, self._target, batch, self._discount, self._generator)
        gradient = self._network.gradient_of(loss.total)
        self._debt.paid()
        numbers = loss.metrics | {"reward_mean": float(batch.rewards.mean())}
        return Update(gradient, self._replay.fresh(self._sample), numbers)

    def answered(self, accepted: bool) -> None:
        if accepted and self._sample is not None:
            self._replay.used(self._sample)

    def _follow(self, step: int) -> None:
        """Move the target critics, once for each step, also for those to which others alone have given a gradient."""
        if step != self._target_step:
            passed = max(1, step - self._target_step)  # less than one: a roll-back
            share = 1 - (1 - self._polyak) ** passed if self._target_step >= 0 else 1.0
            move_targets(self._target, self._network.network.critics, share)
            self._target_step = step
