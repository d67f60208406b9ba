"""Collecting rollouts: T steps of B environments, with the graph that chose the actions kept for the loss.

Legend: T rollout length, B environments, P distribution parameters.

An on-policy learner computes its loss on exactly the forward pass that chose the actions, so that pass is done once:
``Collector.collect`` keeps the policy and values with their autograd graph, and ``Agent.gradient`` differentiates
through them. Frames are not kept at all: what the graph needs of them it has saved itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dba3c.environments.protocol import Episode, VectorEnvironment
from dba3c.metrics import Sections

if TYPE_CHECKING:
    from dba3c.agent import Agent


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What T steps of B environments gave, and the graph of the policy and value that chose them."""

    policy_logits: Tensor
    """[T, B, P] float32, with graph."""
    values: Tensor
    """[T, B] float32, with graph."""
    actions: Tensor
    """[T, B] int64, or [T, B, D]; time t is the transition (observation_t, action_t) → reward_t."""
    rewards: Tensor
    """[T, B] float32, training view."""
    terminated: Tensor
    """[T, B] bool, training view (a lost life counts where configured)."""
    truncated: Tensor
    """[T, B] bool."""
    valid: Tensor
    """[T, B] bool: False where the step was autoreset's extra one, which is no experience."""
    bootstrap_value: Tensor
    """[B] float32: value of the observation after the last step, without graph."""
    episodes: list[Episode]
    """Games that ended inside the rollout, with their unclipped scores."""

    @property
    def agent_steps(self) -> int:
        """Steps that the environments took, autoreset's extra ones included."""
        return self.values.numel()

    @property
    def data_points(self) -> int:
        """Transitions that train."""
        return int(self.valid.sum())


class Collector:
    """Steps one vector environment with an agent, and remembers between rollouts where it stands."""

    def __init__(self, environments: VectorEnvironment, agent: Agent, rollout_length: int, seed: int) -> None:
        self.environments = environments
        self.agent = agent
        self.rollout_length = rollout_length
        self.observation: Any = environments.reset(seed)
        self.state = agent.initial_state(environments.num_envs)

    def collect(self, generator: torch.Generator, sections: Sections) -> Rollout:
        """Take ``rollout_length`` steps with the agent's present parameters."""
        self.state = tuple(part.detach() for part in self.state)
        outputs, actions, transitions = [], [], []
        for _ in range(self.rollout_length):
            with sections("inference"):
                output = self.agent.forward(self.observation, self.state)
                action = self.agent.policy(output.policy_logits).sample(generator)
                chosen = action.numpy()
            with sections("environment"):
                transition = self.environments.step(chosen)
            outputs.append(output)
            actions.append(action)
            transitions.append(transition)
            self.observation, self.state = transition.observation, output.state
        with sections("inference"):
            bootstrap_value = self.agent.value(self.observation, self.state)
        return Rollout(
            policy_logits=torch.stack([output.policy_logits for output in outputs]),
            values=torch.stack([output.value for output in outputs]),
            actions=torch.stack(actions),
            rewards=_stacked([transition.reward for transition in transitions]),
            terminated=_stacked([transition.terminated for transition in transitions]),
            truncated=_stacked([transition.truncated for transition in transitions]),
            valid=_stacked([transition.valid for transition in transitions]),
            bootstrap_value=bootstrap_value,
            episodes=[episode for transition in transitions for episode in transition.episodes],
        )


def _stacked(rows: list[np.ndarray]) -> Tensor:
    """T arrays [B] as one tensor [T, B]."""
    return torch.from_numpy(np.stack(rows))
