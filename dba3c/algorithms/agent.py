"""The agent: one network and one loss, the same in every mode; only who carries its gradients differs.

Legend: T rollout length, B environments, P flat parameters.

Parameters arrive and gradients leave as one flat float32 vector [P] (``param_servers.FlatLayout``). Inside, the torso
may compute in bfloat16 with channels_last weights; the heads, the loss and everything that travels stay float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dba3c.algorithms.actor_critic import ActorCriticLoss
from dba3c.algorithms.rollout import Rollout
from dba3c.networks import ActorCriticNetwork, NetworkOutput, State
from dba3c.networks.distributions import Distribution, distribution
from dba3c.networks.flat_network import FlatNetwork
from param_servers.layout import FlatLayout


class Agent(FlatNetwork):
    """Acts, and turns rollouts into flat gradients.

    Args:
        network: becomes this agent's own.
        layout: where each of the network's parameters lies in the flat vector.
        loss: of a rollout; it knows the action space.
        precision: "float32" or "bfloat16", the torso's compute dtype.
        device: where the network computes.
    """

    network: ActorCriticNetwork

    def __init__(
        self,
        network: ActorCriticNetwork,
        layout: FlatLayout,
        loss: ActorCriticLoss,
        *,
        precision: str = "float32",
        device: str = "cpu",
    ) -> None:
        super().__init__(network, layout, precision=precision, device=device)
        self.loss = loss

    def initial_state(self, num_envs: int) -> State:
        """Recurrent state of ``num_envs`` fresh episodes; () when the network has none."""
        return self.network.initial_state(num_envs)

    def forward(self, observation: Any, state: State) -> NetworkOutput:
        """Policy and values with graph, for observations [B, ...] as the environment gave them."""
        return self.network(torch.as_tensor(observation, device=self.device), state)

    def value(self, observation: Any, state: State) -> Tensor:
        """Values [B] float32 without graph: the bootstrap."""
        with torch.no_grad():
            return self.forward(observation, state).value

    def policy(self, policy_logits: Tensor) -> Distribution:
        """The distribution that the network's output [..., P] stands for."""
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
