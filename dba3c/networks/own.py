"""A network of the user's own, by its name "package.module:function" (docs/own_network.md).

The function takes the spaces of one observation and one action. What it returns is one of two, in float32:

- any module that remembers nothing: observations [B, *S] → policy_logits [B, P], value [B];
- an ``ActorCriticNetwork``, which may remember: one that overrides ``initial_state``, ``forward`` and ``unroll``.

While it runs, torch's global generator is seeded, so that each process of a run builds the same parameters.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dba3c.errors import UserError
from dba3c.networks.actor_critic import ActorCriticNetwork, NetworkOutput, State
from dba3c.networks.distributions import parameter_count
from dba3c.own_code import calling, find

STEPS, BATCH = 2, 3
"""T and B that a network is tried with."""


class Forgetful(ActorCriticNetwork):
    """Any module that gives policy and value of observations, as a network that looks at no state."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, observation: Tensor, state: State = ()) -> NetworkOutput:
        """See ``ActorCriticNetwork.forward``."""
        logits, value = self.module(observation)
        return NetworkOutput(logits, value, state)


def own_network(
    name: str, observation_space: spaces.Space, action_space: spaces.Space, *, seed: int
) -> ActorCriticNetwork:
    """What the function makes, tried on observations of zeros; the same seed gives the same parameters.

    Raises:
        UserError: it cannot be found, called, or used: one line that says what is wrong.
    """
    function = find(name)
    with calling(name), torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = function(observation_space, action_space)
    if not isinstance(module, nn.Module):
        raise UserError(f"{name} must return a torch.nn.Module, not {type(module).__name__}")
    network = module if isinstance(module, ActorCriticNetwork) else Forgetful(module)
    observations = torch.from_numpy(np.zeros((STEPS, BATCH, *(observation_space.shape or ())), observation_space.dtype))
    with calling(name), torch.no_grad():
        if network is not module:
            given = module(observations[0])
            if not isinstance(given, tuple) or len(given) != 2:
                raise UserError(f"{name}: its module must give (policy_logits, value), not {type(given).__name__}")
        state = network.initial_state(BATCH)
        stepped = network(observations[0], state)
        unrolled = network.unroll(observations, state, torch.zeros(STEPS, BATCH, dtype=torch.bool))
    outputs = parameter_count(action_space)
    for what, output, leading in (("", stepped, (BATCH,)), ("unrolled ", unrolled, (STEPS, BATCH))):
        _check(f"{name}: {what}policy_logits", output.policy_logits, (*leading, outputs))
        _check(f"{name}: {what}value", output.value, leading)
    if [part.shape for part in state] != [part.shape for part in stepped.state]:
        raise UserError(f"{name}: the state after a step must have the shapes of initial_state")
    return network


def _check(what: str, given: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(given.shape) != shape or given.dtype != torch.float32:
        raise UserError(f"{what} must be float32 {list(shape)} here, not {str(given.dtype)[6:]} {list(given.shape)}")
