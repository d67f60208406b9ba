"""Collecting rollouts from a vector environment, and remembering between them where it stands."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dba3c.algorithms.agent import Agent
from dba3c.algorithms.rollout import Rollout
from dba3c.environments.protocol import EnvironmentFailed, Experience, Transition, VectorEnvironment
from dba3c.metrics.writer import Sections
from dba3c.networks import reset_state


class Collector:
    """Steps one vector environment with an agent, and remembers between rollouts where it stands.

    Args:
        rollout_length: T.
        keep_observations: its rollouts hold the observations, and no graph (PPO, which sees them several times, and
            where one forward pass more is faster than many small graphs).
    """

    def __init__(
        self,
        environments: VectorEnvironment,
        agent: Agent,
        rollout_length: int,
        keep_observations: bool = False,
    ) -> None:
        self.keep_observations = keep_observations
        self.environments = environments
        self.agent = agent
        self.rollout_length = rollout_length
        self.observation: Any = environments.reset()
        self.state = agent.initial_state(environments.num_envs)

    def collect(self, generator: torch.Generator, sections: Sections) -> Rollout:
        """Take ``rollout_length`` steps with the agent's present parameters. Raises EnvironmentFailed, with those that
        were taken."""
        transitions: list[Transition] = []
        try:
            with torch.set_grad_enabled(not self.keep_observations):
                return self._collect(generator, sections, transitions)
        except EnvironmentFailed as failed:
            failed.transitions = transitions
            raise

    def _collect(self, generator: torch.Generator, sections: Sections, transitions: list[Transition]) -> Rollout:
        self.state = tuple(part.detach() for part in self.state)
        outputs, actions, observations = [], [], []
        for _ in range(self.rollout_length):
            if self.keep_observations:
                observations.append(self.observation)
            with sections("inference"):
                output = self.agent.forward(self.observation, self.state)
                # the generator lives on the CPU
                action = self.agent.policy(output.policy_logits.detach().cpu()).sample(generator)
                chosen = action.numpy()
            with sections("environment"):
                transition = self.environments.step(chosen)
            outputs.append(output)
            actions.append(action)
            transitions.append(transition)
            self.observation = transition.observation
            self.state = reset_state(output.state, torch.from_numpy(transition.first))
        device = self.agent.device
        with sections("inference"), torch.no_grad():
            bootstrap_value = self.agent.forward(self.observation, self.state).value
        return Rollout(
            policy_logits=torch.stack([output.policy_logits for output in outputs]),
            values=torch.stack([output.value for output in outputs]),
            actions=torch.stack(actions).to(device),
            rewards=_stacked([transition.reward for transition in transitions]).to(device),
            terminated=_stacked([transition.terminated for transition in transitions]).to(device),
            truncated=_stacked([transition.truncated for transition in transitions]).to(device),
            valid=_stacked([transition.valid for transition in transitions]).to(device),
            bootstrap_value=bootstrap_value,
            experience=Experience.of(np.stack([transition.frames for transition in transitions])),
            episodes=[episode for transition in transitions for episode in transition.episodes],
            observations=_stacked(observations).to(device) if self.keep_observations else None,
            failures=tuple(failure for transition in transitions for failure in transition.failures),
        )


def _stacked(rows: list[np.ndarray]) -> Tensor:
    """T arrays [B, ...] as one tensor [T, B, ...]."""
    return torch.from_numpy(np.stack(rows))
