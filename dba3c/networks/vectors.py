"""Multi-layer perceptrons for vector observations. Legend: B batch, D inputs, F features."""

from __future__ import annotations

from itertools import pairwise

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dba3c.networks.layers import TANH_GAIN, linear
from dba3c.networks.observations import as_vector, vector_size


def perceptron(sizes: list[int], generator: torch.Generator, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers of ``sizes`` (inputs first), each followed by the activation: [B, sizes[0]] → [B, sizes[-1]]."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [linear(inputs, outputs, generator, gain=TANH_GAIN), activation()]
    return nn.Sequential(*layers)


class PerceptronTorso(nn.Module):
    """Two tanh layers of 64 for the policy and, when ``separate``, two more for the value.

    With D inputs 64·D + 4,224 parameters, twice that when separate (CartPole, D = 4: 8,960; 9,155 with heads).
    """

    def __init__(
        self,
        space: spaces.Space,
        generator: torch.Generator,
        *,
        hidden: tuple[int, ...] = (64, 64),
        separate: bool = True,
    ) -> None:
        super().__init__()
        self.space = space
        sizes = [vector_size(space), *hidden]
        self.features = hidden[-1] * (2 if separate else 1)
        self.policy = perceptron(sizes, generator)
        self.value = perceptron(sizes, generator) if separate else None

    def forward(self, observation: Tensor) -> Tensor:
        """Observations [B, …] → features [B, F]: the policy's, then (when separate) the value's."""
        vector = as_vector(observation, self.space, next(self.parameters()).dtype)
        if self.value is None:
            return self.policy(vector)
        return torch.cat((self.policy(vector), self.value(vector)), -1)
