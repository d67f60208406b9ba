"""How a learner chooses actions for its actors. Legend: N environments in a batch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.agent import Agent
from dba3c.networks import State


class Asked(NamedTuple):
    """One batch of questions."""

    observation: np.ndarray  # [N, ...]
    state: State  # recurrent state before these observations [N, ...]
    reward: np.ndarray  # [N] float32, of the step that led here; meaningless where an episode begins
    environments: np.ndarray  # [N] int64: numbers that stay with an environment (actor, group and place in it)


class Decision(NamedTuple):
    """One batch of actions."""

    actions: np.ndarray  # [N] int64, [N, D] int64 or float32
    log_probs: np.ndarray  # [N] float32: log μ(a|x) of the actions
    state: State  # recurrent state after these observations [N, ...]


class Policy(Protocol):
    """What the inference service asks."""

    version: int
    """Which weights decide: the step they were committed at."""

    def initial_state(self, num_envs: int) -> State:
        """Recurrent state of fresh episodes."""
        ...

    def load(self, parameters: Tensor, version: int) -> None:
        """Decide with these flat parameters [P] from now on."""
        ...

    def act(self, asked: Asked) -> Decision:
        """Actions for one batch."""
        ...


class ActorCriticPolicy:
    """Samples from an agent's policy.

    Args:
        agent: its own, or the learner's: then ``load`` also gives the learner its parameters.
        seed: of the actions.
    """

    def __init__(self, agent: Agent, seed: int) -> None:
        self.agent = agent
        self.version = -1
        self._generator = torch.Generator().manual_seed(seed)

    def initial_state(self, num_envs: int) -> State:
        """See ``Policy``."""
        return self.agent.initial_state(num_envs)

    def load(self, parameters: Tensor, version: int) -> None:
        """See ``Policy``."""
        self.agent.load(parameters)
        self.version = version

    @torch.no_grad()
    def act(self, asked: Asked) -> Decision:
        """See ``Policy``."""
        output = self.agent.forward(asked.observation, asked.state)
        policy = self.agent.policy(output.policy_logits.cpu())  # the sampler's generator lives on the CPU
        actions = policy.sample(self._generator)
        return Decision(actions.numpy(), policy.log_prob(actions).numpy(), output.state)
