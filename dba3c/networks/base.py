"""What every actor-critic network is: a torso that makes features, heads that read policy and value from them.

Legend: B batch, S observation shape, F features, P distribution parameters (A logits for a discrete action of A).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dba3c.networks.distributions import parameter_count
from dba3c.networks.layers import linear

State = tuple[Tensor, ...]
POLICY_GAIN = 0.01
"""Small, so that the first policy is nearly uniform (Engstrom et al. 2020, arXiv 2005.12729)."""


class NetworkOutput(NamedTuple):
    """Policy and value of a batch of observations."""

    policy_logits: Tensor
    """[B, P] float32: logits of a discrete action, (mean, log standard deviation) of a continuous one."""
    value: Tensor
    """[B] float32."""
    state: State = ()
    """Recurrent state after these observations; empty for feed-forward networks."""


class Heads(nn.Module):
    """Linear policy and value of the features [B, F] float32; ``(F+1)(P+1)`` parameters, or as below.

    ``separate``: the first half of the features feeds the policy, the second the value: ``(F/2+1)(P+1)`` parameters.
    A Box action of D dimensions adds nothing: its D log standard deviations replace D rows of the policy.
    """

    def __init__(
        self, features: int, action_space: spaces.Space, generator: torch.Generator, *, separate: bool = False
    ) -> None:
        super().__init__()
        self.separate = separate
        inputs = features // 2 if separate else features
        outputs = parameter_count(action_space)
        self.log_std: nn.Parameter | None = None
        if isinstance(action_space, spaces.Box):
            # one deviation per dimension, the same in all observations: the usual and more stable choice on-policy
            outputs //= 2
            self.log_std = nn.Parameter(torch.zeros(outputs))
        self.policy = linear(inputs, outputs, generator, gain=POLICY_GAIN)
        self.value = linear(inputs, 1, generator, gain=1.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[B, F] float32 → logits [B, P], value [B]."""
        policy_features, value_features = features.chunk(2, -1) if self.separate else (features, features)
        logits = self.policy(policy_features)
        if self.log_std is not None:
            logits = torch.cat((logits, self.log_std.expand_as(logits)), -1)
        return logits, self.value(value_features).squeeze(-1)


class ActorCriticNetwork(nn.Module):
    """A torso and its heads. The torso may run in another precision: ``network.torso.to(torch.bfloat16)``.

    The torso casts observations to the dtype of its own parameters; features are cast to float32 for the heads, so
    that logits, values and losses are float32 always.
    """

    def __init__(self, torso: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.torso = torso
        self.heads = heads

    def initial_state(self, batch_size: int) -> State:
        """State of ``batch_size`` environments at the start of an episode: () for feed-forward networks."""
        return ()

    def forward(self, observation: Tensor, state: State = ()) -> NetworkOutput:
        """Observations [B, *S] uint8 or float32 → NetworkOutput; feed-forward networks hand the state through."""
        logits, value = self.heads(self.torso(observation).float())
        return NetworkOutput(logits, value, state)

    def unroll(self, observations: Tensor, state: State, reset: Tensor) -> NetworkOutput:
        """T steps at once: observations [T, B, *S] → logits [T, B, P], values [T, B], the state after the last.

        reset: [T, B] bool, True where the observation begins an episode, so that the state before it is a fresh one.
        It gives what T calls of ``forward`` give; feed-forward networks look at neither state nor reset.
        """
        logits, value, _ = self(observations.flatten(0, 1))
        steps = observations.shape[:2]
        return NetworkOutput(logits.unflatten(0, steps), value.unflatten(0, steps), state)
