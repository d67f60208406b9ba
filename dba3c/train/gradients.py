"""How a rollout becomes gradients: one through the graph that chose the actions, or one of each minibatch of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from dba3c.algorithms.agent import Agent
from dba3c.algorithms.ppo import (
    PpoBatch,
    PpoSettings,
    Total,
    alone,
    minibatches,
    normalised_advantages,
    ppo_batch,
    ppo_loss,
)
from dba3c.algorithms.rollout import Rollout
from dba3c.config import AlgorithmConfig
from param_servers.schedules import parse_schedule

Part = TypeVar("Part")


class Gradients(Protocol[Part]):
    """What the worker asks of an algorithm."""

    several: bool
    """Whether a rollout gives several gradients, each at the newest parameters: then it keeps its observations and no
    graph."""

    def parts(self, rollout: Rollout, generator: torch.Generator) -> Iterator[tuple[Part, int]]:
        """What one gradient each is computed on, and the data points of it that enter their first update."""
        ...

    def of(self, part: Part, data_points: int) -> tuple[Tensor, dict[str, float]]:
        """The gradient [P] at the agent's parameters, in a buffer that the next one reuses, and its metrics.

        data_points: of the run so far, by which schedules go.
        """
        ...


def gradients_of(algorithm: AlgorithmConfig, agent: Agent, total: Total = alone) -> Gradients:
    """As the configuration has it. total: over what a worker's processes learn on together."""
    return PpoGradients(algorithm, agent, total) if algorithm.algorithm == "ppo" else OneGradient(algorithm, agent)


class OneGradient:
    """n-step actor-critic and V-trace: each rollout is differentiated once, through the graph that it holds."""

    several = False

    def __init__(self, algorithm: AlgorithmConfig, agent: Agent) -> None:
        self._agent, self._entropy_cost = agent, parse_schedule(algorithm.entropy_cost)

    def parts(self, rollout: Rollout, generator: torch.Generator) -> Iterator[tuple[Rollout, int]]:
        """See ``Gradients``."""
        yield rollout, rollout.data_points

    def of(self, part: Rollout, data_points: int) -> tuple[Tensor, dict[str, float]]:
        """See ``Gradients``."""
        cost = self._entropy_cost(data_points)
        gradient, losses = self._agent.gradient(part, entropy_cost=cost)
        return gradient, losses | {"entropy_cost": cost}


class PpoGradients:
    """Proximal policy optimisation: epochs of minibatches, each of which is an update of its own.

    Every minibatch's gradient goes through the exchange, so that all workers take the same updates: the mean of their
    gradients is that of one minibatch made of theirs, but for advantages, which each normalises by its own minibatch:
    that of all its lanes.
    """

    several = True

    def __init__(self, algorithm: AlgorithmConfig, agent: Agent, total: Total = alone) -> None:
        self._agent, self._total = agent, total
        self._entropy_cost = parse_schedule(algorithm.entropy_cost)
        self._policy_clip = parse_schedule(algorithm.policy_clip)
        self._settings = PpoSettings(
            discount=algorithm.discount,
            trace_lambda=algorithm.trace_lambda,
            value_cost=algorithm.value_cost,
            epochs=algorithm.ppo_epochs,
            minibatches=algorithm.ppo_minibatches,
        )

    def parts(self, rollout: Rollout, generator: torch.Generator) -> Iterator[tuple[PpoBatch, int]]:
        """See ``Gradients``."""
        assert rollout.observations is not None
        policy = self._agent.policy(rollout.policy_logits)
        batch = ppo_batch(policy, rollout, rollout.observations, self._settings)
        for index, part in enumerate(minibatches(batch, self._settings, generator)):
            # a point is data when it enters its first update, not again in later epochs
            yield part, part.data_points if index < self._settings.minibatches else 0

    def of(self, part: PpoBatch, data_points: int) -> tuple[Tensor, dict[str, float]]:
        """See ``Gradients``."""
        cost = self._entropy_cost(data_points)
        settings = replace(self._settings, policy_clip=self._policy_clip(data_points))
        output = self._agent.forward(part.observations, ())
        policy, advantages = self._agent.policy(output.policy_logits), normalised_advantages(part, self._total)
        loss = ppo_loss(policy, output.value, part, advantages, settings, entropy_cost=cost)
        return self._agent.gradient_of(loss.total), loss.metrics | {"entropy_cost": cost}
