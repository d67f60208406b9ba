"""Actor-critic networks: a torso that makes features, heads that read policy and value, perhaps an LSTM in between.

Legend: T unroll length, B batch, S observation shape, F features, H LSTM size, P distribution parameters (A logits for
a discrete action of A). A network is stepped while acting, and unrolled while learning.
"""

from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dba3c.networks.distributions import parameter_count
from dba3c.networks.torsos import leaving_the_global_generator, linear

State = tuple[Tensor, ...]
_FORGET_BIAS = 1.0
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
        self,
        features: int,
        action_space: spaces.Space,
        generator: torch.Generator | None = None,
        *,
        separate: bool = False,
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


def lstm_cell(inputs: int, size: int, generator: torch.Generator | None) -> nn.LSTMCell:
    """An LSTM cell of 4·H·(F + H + 2) parameters; orthogonal, biases 0 but the forget gate's, which is 1."""
    with leaving_the_global_generator():
        cell = nn.LSTMCell(inputs, size)
    for weight in (cell.weight_ih, cell.weight_hh):
        for gate in weight.data.chunk(4):  # each gate is a matrix of its own
            nn.init.orthogonal_(gate, generator=generator)
    nn.init.zeros_(cell.bias_hh)
    nn.init.zeros_(cell.bias_ih)
    cell.bias_ih.data[size : 2 * size].fill_(_FORGET_BIAS)
    return cell


def reset_state(state: State, reset: Tensor) -> State:
    """The state with zeros in the rows where ``reset`` [B] is set; () stays (). Gradients stop at a reset."""
    return tuple(part.masked_fill(reset.to(part.device).unsqueeze(-1), 0) for part in state)


class Core(nn.Module):
    """An LSTM over features, reset inside the unroll where an episode begins."""

    def __init__(self, inputs: int, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.size = size
        self.cell = lstm_cell(inputs, size, generator)

    def initial_state(self, batch_size: int) -> State:
        """(h, c), zeros [B, H] float32."""
        zeros = torch.zeros(batch_size, self.size, device=self.cell.weight_ih.device)
        return zeros, zeros.clone()

    def step(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Features [B, F] float32 and state → output [B, H], state."""
        hidden, memory = self.cell(features, state)
        return hidden, (hidden, memory)

    def forward(self, features: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """Features [T, B, F], the state before them, reset [T, B] bool → outputs [T, B, H], the state after."""
        outputs = []
        any_reset = reset.flatten(1).any(-1).tolist()
        for t in range(features.shape[0]):
            if any_reset[t]:
                state = reset_state(state, reset[t])
            output, state = self.step(features[t], state)
            outputs.append(output)
        return torch.stack(outputs), state


class RecurrentNetwork(ActorCriticNetwork):
    """An actor-critic whose heads [B, H] read an LSTM between them and the torso.

    While acting, the caller resets the state of environments whose episode begins (``reset_state``). The torso may
    run in bfloat16; the LSTM is float32.
    """

    def __init__(self, torso: nn.Module, core: Core, heads: nn.Module) -> None:
        super().__init__(torso, heads)
        self.core = core

    def initial_state(self, batch_size: int) -> State:
        """(h, c), zeros [B, H] float32."""
        return self.core.initial_state(batch_size)

    def forward(self, observation: Tensor, state: State = ()) -> NetworkOutput:
        """Observations [B, *S] and state (() for a fresh one) → NetworkOutput of one step."""
        features, state = self.core.step(
            self.torso(observation).float(), state or self.initial_state(observation.shape[0])
        )
        logits, value = self.heads(features)
        return NetworkOutput(logits, value, state)

    def unroll(self, observations: Tensor, state: State, reset: Tensor) -> NetworkOutput:
        features = self.torso(observations.flatten(0, 1)).float()
        outputs, state = self.core(features.unflatten(0, observations.shape[:2]), state, reset)
        logits, value = self.heads(outputs)
        return NetworkOutput(logits, value, state)
