"""Networks with memory: a torso, an LSTM, heads; stepped while acting, unrolled while learning.

Legend: T unroll length, B batch, S observation shape, F features, H LSTM size, P distribution parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from dba3c.networks.base import ActorCriticNetwork, NetworkOutput, State

_FORGET_BIAS = 1.0


def lstm_cell(inputs: int, size: int, generator: torch.Generator) -> nn.LSTMCell:
    """An LSTM cell of 4·H·(F + H + 2) parameters; orthogonal, biases 0 but the forget gate's, which is 1."""
    cell = skip_init(nn.LSTMCell, inputs, size)
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

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
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
        """See ``ActorCriticNetwork.unroll``."""
        features = self.torso(observations.flatten(0, 1)).float()
        outputs, state = self.core(features.unflatten(0, observations.shape[:2]), state, reset)
        logits, value = self.heads(outputs)
        return NetworkOutput(logits, value, state)
