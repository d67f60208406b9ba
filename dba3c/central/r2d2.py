"""R2D2 on central inference: sequences are replayed by their priorities.

Legend: B sequences, E environments of a learner, T unroll length, K frames in a stack.

Complete unrolls feed the replay: sequences begin where unrolls do, so the recurrent state that the replay stores with
each is the one its unroll began with. A sequence is the burn-in and one unroll's length.
"""

import copy

import numpy as np
import torch

from dba3c.algorithms.agent import FlatNetwork
from dba3c.algorithms.r2d2 import Sequences, r2d2_loss
from dba3c.algorithms.sequence_replay import Sample, SequenceReplay, Steps
from dba3c.central.algorithm import ReplayDebt, Trainer, Update
from dba3c.central.unrolls import GroupUnroll
from dba3c.central.wire import TERMINATED, TRUNCATED, VALID, WHOLE, GroupShape
from dba3c.config import TrainConfig
from dba3c.errors import UserError
from param_servers.exchange import Pull


class R2d2Trainer(Trainer):
    """Keeps the newest sequences of every environment; owes gradients by the replay ratio.

    Args:
        shape: of an actor's group.
        actors: ranks of the learner's actors, whose environments have a place in the replay.
        seed: of the sampling.

    Raises:
        UserError: unrolls are too short.
    """

    def __init__(self, config: TrainConfig, network: FlatNetwork, shape: GroupShape, actors: range, seed: int) -> None:
        replay, central, self._network = config.replay, config.central, network
        self._size, self._groups, self._actors = shape.num_envs, central.actor_groups, actors
        self._discount, self._n_step, self._burn_in = config.algorithm.discount, replay.n_step, replay.burn_in
        stride, envs = central.unroll_length, len(actors) * central.envs_per_actor
        if stride < (shortest := max(2, shape.frame_stack)):  # so that a block holds all that lies before a sequence
            raise UserError(f"r2d2 needs unrolls of {shortest} steps or more here, got {stride} (--unroll-length)")
        length = replay.burn_in + stride
        least = -(-(length + 2 * stride + shape.frame_stack) // stride)
        self.least_steps = envs * least * stride
        self._replay = SequenceReplay(
            environments=envs,
            steps_per_environment=max(least, replay.replay_capacity // envs // stride) * stride,
            sequence_length=length,
            stride=stride,
            frame_stack=shape.frame_stack,
            frame_shape=shape.frame_shape,
            frame_dtype=np.dtype(shape.dtype),
            state_sizes=(replay.memory_size, replay.memory_size),
        )
        self._debt = ReplayDebt(replay.replay_start, replay.replay_ratio, replay.replay_batch * stride)
        self._batch_size, self._target_every_steps = replay.replay_batch, replay.target_every_steps
        self._target = copy.deepcopy(network.network).requires_grad_(False)
        self._target_period = -1
        self._sample: Sample | None = None
        self._rng = np.random.default_rng(seed)
        self.memory_bytes = self._replay.memory_bytes

    @property
    def owes(self) -> bool:
        return self._debt.owes and len(self._replay) > 0

    def take(self, unrolls: list[GroupUnroll]) -> None:
        for unroll in unrolls:
            self._replay.append(self._places(unroll), self._steps(unroll), continues=unroll.continues)
            self._debt.gathered(int((unroll.flags[1:] & VALID != 0).sum()))
        if not len(self._replay):  # else the first sequences, of a few environments, would pay for the steps of all
            self._debt.forgive()

    def _steps(self, unroll: GroupUnroll) -> Steps:
        """What an unroll shows before its last observation; frames are views, and older ones nobody writes to again."""
        rows, flags = range(unroll.history, unroll.history + unroll.length), unroll.flags[: unroll.length]
        return Steps(
            frames=unroll.frames.frames[rows.start : rows.stop],
            rewards=unroll.rewards[: unroll.length],
            terminated=flags & TERMINATED != 0,
            truncated=flags & TRUNCATED != 0,
            valid=flags & VALID != 0,
            first=flags & WHOLE != 0,
            actions=unroll.actions,
            older=[older for whole in unroll.frames.wholes if whole.row in rows for older in whole.older],
            state=tuple(part.cpu().numpy() for part in unroll.initial_state[:2]),
        )

    def _places(self, unroll: GroupUnroll) -> np.ndarray:
        """The environments' places in the replay [B]."""
        group = self._actors.index(unroll.key.actor) * self._groups + unroll.key.group
        return np.arange(group * self._size, (group + 1) * self._size)

    def update(self, pulled: Pull) -> Update:
        """See ``Trainer``. The target network is copied at every n-th step."""
        self._follow(pulled.step)
        sample = self._replay.sample(self._batch_size, self._rng)
        device = self._network.device
        sequences = _on_device(sample.sequences, device)
        weights = sample.weights.to(device)
        loss, priorities = r2d2_loss(
            self._network.network,
            self._target,
            sequences,
            weights,
            discount=self._discount,
            n_step=self._n_step,
            burn_in=self._burn_in,
        )
        gradient = self._network.gradient_of(loss.total)
        if bool(priorities.isfinite().all()):  # else neither is the gradient, which the exchange refuses
            self._replay.update_priorities(sample, priorities.cpu())
        self._debt.paid()
        self._sample = sample
        # sequences begin a stride apart and train on their last stride: no step is trained on by two of them
        trained, rewards = sample.sequences.valid[self._burn_in :], sample.sequences.rewards[self._burn_in :]
        reward_mean = float((rewards * trained).sum() / trained.sum().clamp(min=1))
        numbers = loss.metrics | {"priority_mean": float(priorities.mean()), "reward_mean": reward_mean}
        return Update(gradient, int(trained[:, self._replay.fresh(sample)].sum()), numbers)

    def answered(self, accepted: bool) -> None:
        if accepted and self._sample is not None:
            self._replay.used(self._sample)

    def _follow(self, step: int) -> None:
        """Copy into the target network when a period begins."""
        period = step // self._target_every_steps
        if period != self._target_period:
            self._target_period = period
            self._target.load_state_dict(self._network.network.state_dict())


def _on_device(sequences: Sequences, device: torch.device) -> Sequences:
    fields = sequences._asdict()
    state = tuple(part.to(device) for part in fields.pop("state"))
    return Sequences(**{name: tensor.to(device) for name, tensor in fields.items()}, state=state)
