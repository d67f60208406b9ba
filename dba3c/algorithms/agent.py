"""The agent: one network and one loss, the same in every mode; only who carries its gradients differs.

Legend: T rollout length, B environments, P flat parameters, D numbers of a distribution.

Parameters arrive and gradients leave as one flat float32 vector [P] (``param_servers.FlatLayout``). Inside, the torso
may compute in bfloat16 with channels_last weights; the heads, the loss and everything that travels stay float32.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dba3c.algorithms.actor_critic import ActorCriticLoss
from dba3c.algorithms.rollout import Rollout
from dba3c.networks import ActorCriticNetwork, NetworkOutput, State
from dba3c.networks.distributions import Distribution, distribution
from param_servers.layout import FlatLayout, floats

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FlatNetwork:
    """A network whose parameters are one flat vector [P] float32.

    Args:
        network: becomes this object's own; any module.
        layout: where each of its parameters lies in the flat vector.
        precision: "float32" or "bfloat16", the compute dtype of the network's torso, where it has one.
        device: where it computes.
    """

    def __init__(self, network: Any, layout: FlatLayout, *, precision: str = "float32", device: str = "cpu") -> None:
        self.device = torch.device(device)
        dtype = COMPUTE_DTYPES[precision]
        if isinstance(getattr(network, "torso", None), torch.nn.Module):  # complex constants have no such half
            network.torso._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
        self.network = network.to(self.device)
        for layer in network.modules():
            if type(layer) is nn.Conv2d:  # what else a network of the user's own has may be viewed by it
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        self.layout = layout
        self._gradient = floats(layout.numel).zero_()
        named = dict(network.named_parameters())
        self._parameters = [named[name] for name in layout.names]
        self._gradient_views = list(layout.views(self._gradient).values())

    def load(self, parameters: Tensor) -> None:
        """Take the flat float32 parameters [P], casting to the compute dtype. A module that only plays is put into eval
        mode anew: it may derive from parameters then what it computes with."""
        plays = not self.network.training
        if plays:
            self.network.train()
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, list(self.layout.views(parameters).values()))
        if plays:
            self.network.eval()

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The gradient [P] float32 of a scalar loss, in a buffer that the next call reuses."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            torch._foreach_copy_(self._gradient_views, [_gradient_of(p) for p in self._parameters])
        return self._gradient


def _gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class Agent(FlatNetwork):
    """Acts, and turns rollouts into flat gradients: a ``FlatNetwork`` with a loss that knows the action space.

    Args:
        draws: a second forward pass may give another policy than the one that acted, as with the user's own dropout.
    """

    network: ActorCriticNetwork

    def __init__(
        self,
        network: ActorCriticNetwork,
        layout: FlatLayout,
        loss: ActorCriticLoss,
        *,
        draws: bool = False,
        precision: str = "float32",
        device: str = "cpu",
    ) -> None:
        super().__init__(network, layout, precision=precision, device=device)
        self.loss, self.draws = loss, draws

    def initial_state(self, num_envs: int) -> State:
        """Recurrent state of ``num_envs`` fresh episodes; () when the network has none."""
        return tuple(part.to(self.device) for part in self.network.initial_state(num_envs))

    def forward(self, observation: Any, state: State) -> NetworkOutput:
        """Policy and values with graph, for observations [B, ...] as the environment gave them."""
        return self.network(torch.as_tensor(observation, device=self.device), state)

    def policy(self, policy_logits: Tensor) -> Distribution:
        """The distribution that the network's output [..., D] stands for."""
        return distribution(self.loss.action_space, policy_logits)

    def gradient(
        self, rollout: Rollout, *, entropy_cost: float, behaviour_log_probs: Tensor | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss's gradient [P] float32, in a buffer that the next call reuses, and the loss's metrics.

        behaviour_log_probs: [T, B] float32 of the policy that acted, where that was not this one (V-trace).
        """
        if behaviour_log_probs is not None:
            behaviour_log_probs = behaviour_log_probs.to(self.device)
        loss = self.loss(rollout, entropy_cost=entropy_cost, behaviour_log_probs=behaviour_log_probs)
        return self.gradient_of(loss.total), loss.metrics
