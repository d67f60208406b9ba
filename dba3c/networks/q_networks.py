"""R2D2's network (Kapturowski et al. 2019): torso, LSTM, dueling heads (Wang et al. 2016, arXiv 1511.06581).

Legend: T unroll length, B batch, S observation shape, F features, H LSTM size, A actions.

The LSTM also sees the previous action, one-hot, and the previous reward: its inputs are F + A + 1 numbers.
"""

from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from dba3c.errors import UserError
from dba3c.networks.actor_critic import Core, State
from dba3c.networks.torsos import (
    NATURE_SMALLEST_SIDE,
    PerceptronTorso,
    images_of,
    linear,
    nature_torso,
    resnet_torso,
    torso_for,
)

NO_ACTION = -1
"""The previous action of an episode's first observation: its one-hot is all zeros."""


class QOutput(NamedTuple):
    """Action values of a batch or an unroll."""

    q_values: Tensor
    """[B, A] or [T, B, A] float32."""
    state: State
    """(h, c) after the last observation, [B, H] each."""


class DuelingHeads(nn.Module):
    """Q = V + A − mean A, with one hidden ReLU layer of ``hidden`` for V and one for A."""

    def __init__(self, features: int, actions: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.value = nn.Sequential(
            linear(features, hidden, generator), nn.ReLU(inplace=True), linear(hidden, 1, generator, gain=1.0)
        )
        self.advantage = nn.Sequential(
            linear(features, hidden, generator), nn.ReLU(inplace=True), linear(hidden, actions, generator, gain=1.0)
        )

    def forward(self, features: Tensor) -> Tensor:
        """[…, H] float32 → [..., A]."""
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)


class RecurrentQNetwork(nn.Module):
    """Action values of observations, the previous action and reward, and what the LSTM remembers.

    Nature torso, LSTM 512, dueling 512, four gray frames, A = 18: 4,359,347 parameters.
    """

    def __init__(self, torso: Any, core: Core, heads: DuelingHeads, num_actions: int) -> None:
        super().__init__()
        self.torso = torso
        self.core = core
        self.heads = heads
        self.num_actions = num_actions

    def initial_state(self, batch_size: int) -> State:
        """(h, c), zeros [B, H] float32."""
        return self.core.initial_state(batch_size)

    def forward(self, observation: Tensor, state: State, previous_action: Tensor, previous_reward: Tensor) -> QOutput:
        """One step: observation [B, *S], previous_action int64 [B] (``NO_ACTION`` at first), reward float32 [B]."""
        inputs = self._core_inputs(self.torso(observation).float(), previous_action, previous_reward)
        hidden, state = self.core.step(inputs, state or self.initial_state(observation.shape[0]))
        return QOutput(self.heads(hidden), state)

    def unroll(
        self, observations: Tensor, state: State, previous_actions: Tensor, previous_rewards: Tensor, reset: Tensor
    ) -> QOutput:
        """T steps, all [T, B, …]; where ``reset`` is set state, previous action and reward count as none."""
        features = self.torso(observations.flatten(0, 1)).float().unflatten(0, observations.shape[:2])
        inputs = self._core_inputs(
            features, previous_actions.masked_fill(reset, NO_ACTION), previous_rewards.masked_fill(reset, 0)
        )
        hidden, state = self.core(inputs, state, reset)
        return QOutput(self.heads(hidden), state)

    def _core_inputs(self, features: Tensor, previous_action: Tensor, previous_reward: Tensor) -> Tensor:
        # NO_ACTION + 1 = 0 is the column that is cut off
        one_hot = functional.one_hot(previous_action + 1, self.num_actions + 1)[..., 1:].float()
        return torch.cat((features, one_hot, previous_reward.unsqueeze(-1)), -1)


def build_q_network(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    seed: int = 0,
    lstm_size: int = 512,
    dueling_size: int = 512,
    hidden: tuple[int, ...] = (64,),
) -> RecurrentQNetwork:
    """R2D2's network for images, with IMPALA's torso where one is too small for Nature's; for vectors a tanh perceptron
    of ``hidden`` takes the torso's place.

    Raises UserError when the actions are not Discrete.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise UserError(f"R2D2 needs Discrete actions, not {action_space}")
    generator = torch.Generator().manual_seed(seed)
    num_actions = int(action_space.n)
    torso: Any
    if images := images_of(observation_space):
        smallest = min(min(image.height, image.width) for image in images)
        image_torso = nature_torso if smallest >= NATURE_SMALLEST_SIDE else resnet_torso
        torso = torso_for(observation_space, image_torso, generator)
    else:
        torso = PerceptronTorso(observation_space, generator, hidden=hidden, separate=False)
    core = Core(torso.features + num_actions + 1, lstm_size, generator)
    return RecurrentQNetwork(torso, core, DuelingHeads(lstm_size, num_actions, dueling_size, generator), num_actions)
