"""SAC's networks (Haarnoja et al. 2018, arXiv 1812.05905): an actor, two critics, a learned temperature.

Legend: B batch, O observation numbers, D action dimensions. Actions are in (−1, 1)^D; ``ActionScaling`` maps them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dba3c.environments.spaces import MixedSpace
from dba3c.errors import UserError
from dba3c.networks.distributions import TanhGaussian
from dba3c.networks.torsos import as_vector, linear, perceptron, vector_size

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


class ActionScaling(NamedTuple):
    """The affine map between (−1, 1)^D and a bounded Box."""

    centre: np.ndarray
    half_width: np.ndarray

    @classmethod
    def of(cls, space: spaces.Space) -> ActionScaling:
        """Raises UserError unless the space is a Box with finite bounds."""
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise UserError(f"SAC needs a Box of bounded actions, not {space}")
        low, high = space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
        with np.errstate(over="ignore"):
            half_width = (high - low) / 2
        if not (np.isfinite(half_width) & (half_width > 0)).all():
            raise UserError(f"SAC needs a Box whose bounds differ, and by a number that float32 holds, not {space}")
        return cls((high + low) / 2, half_width)

    def to_environment(self, action: np.ndarray) -> np.ndarray:
        """[B, D] in (−1, 1) → [B, D] in the Box."""
        return self.centre + self.half_width * action

    def from_environment(self, action: np.ndarray) -> np.ndarray:
        """[B, D] in the Box → [B, D] in (−1, 1)."""
        return (action - self.centre) / self.half_width


class TwinCritics(nn.Module):
    """Two independent perceptrons (O + D) → hidden → 1 with ReLU."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator) -> None:
        super().__init__()
        self.first = _value_perceptron(inputs, hidden, generator)
        self.second = _value_perceptron(inputs, hidden, generator)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Observations [B, O], actions [B, D] in (−1, 1) → [2, B], the two critics' values."""
        inputs = torch.cat((observation, action), -1)
        return torch.stack((self.first(inputs).squeeze(-1), self.second(inputs).squeeze(-1)))


def _value_perceptron(inputs: int, hidden: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    body = perceptron([inputs, *hidden], generator, nn.ReLU)
    return nn.Sequential(body, linear(hidden[-1], 1, generator, gain=1.0))


class SacNetwork(nn.Module):
    """Actor, critics and log temperature: everything that SAC learns by gradient.

    With hidden (256, 256), O = 3 and D = 1 (Pendulum): 201,989 parameters. For single spaces; raises UserError when the
    actions are no bounded Box, or observations have images and a vector.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        seed: int = 0,
        hidden: tuple[int, ...] = (256, 256),
    ) -> None:
        super().__init__()
        if isinstance(observation_space, MixedSpace):
            raise UserError(f"SAC sees vectors, not {observation_space}")
        action_dimensions, observations = len(ActionScaling.of(action_space).centre), vector_size(observation_space)
        generator = torch.Generator().manual_seed(seed)
        self.actor = nn.Sequential(
            perceptron([observations, *hidden], generator, nn.ReLU),
            linear(hidden[-1], 2 * action_dimensions, generator, gain=0.01),
        )
        self.critics = TwinCritics(observations + action_dimensions, hidden, generator)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def vector(self, observation: Tensor) -> Tensor:
        """Observations [B, …] as float32 [B, O]."""
        return as_vector(observation, torch.float32)

    def policy(self, observation: Tensor) -> TanhGaussian:
        """The policy at observations [B, O] float32; log σ is squashed into [−5, 2] by tanh, where the paper's code
        cuts at −20 and 2 and has no gradient beyond."""
        mean, raw = self.actor(observation).chunk(2, -1)
        log_std = _LOG_STD_MIN + 0.5 * (_LOG_STD_MAX - _LOG_STD_MIN) * (torch.tanh(raw) + 1)
        return TanhGaussian(torch.cat((mean, log_std), -1))
