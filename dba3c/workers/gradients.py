"""How a rollout becomes gradients: one through the graph that chose the actions, or one of each minibatch of PPO."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from dba3c.algorithms.actor_critic import own_algorithm
from dba3c.algorithms.agent import Agent
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.ppo import (
    PpoBatch,
    Total,
    alone,
    minibatch_positions,
    normalised_advantages,
    ppo_batch,
    ppo_loss,
)
from dba3c.algorithms.rollout import Rollout
from param_servers.config import parse_schedule

Part = TypeVar("Part")


class Gradients(Protocol[Part]):
    """What the worker asks of an algorithm."""

    several: bool
    """Whether a rollout gives several gradients, each at the newest parameters."""
    keeps_observations: bool
    """Whether rollouts hold the observations and no graph, as they must for several."""

    def parts(self, rollout: Rollout, generator: torch.Generator) -> Iterator[tuple[Part, int]]:
        """What one gradient each is computed on, and the data points of it that enter their first update."""
        ...

    def of(self, part: Part, data_points: int) -> tuple[Tensor, dict[str, float]]:
        """The gradient [P] at the agent's parameters, in a buffer that the next one reuses, and its metrics.

        data_points: of the run so far, by which schedules go.
        """
        ...

    def refused(self) -> None:
        """The newest gradient has entered no update. An algorithm of a user's may lack it."""
        ...


def gradients_of(algorithm: AlgorithmConfig, agent: Agent, num_envs: int, total: Total = alone) -> Gradients:
    """As the configuration has it, of rollouts of `num_envs`.

    total: over what a worker's processes learn on together.
    """
    if own := own_algorithm(algorithm.algorithm):
        return cast("Gradients", own(algorithm, agent, total))
    if algorithm.algorithm == "ppo":
        return PpoGradients(algorithm, agent, total)
    return OneGradient(algorithm, agent, num_envs)


FEW_ENVIRONMENTS = 4
"""Up to so many a second forward pass of all T·B observations, with one backward pass, takes 0.64 to 0.84 of the time
of T graphs of B kept while acting (small and Nature's networks, T 5); with 16 and more it takes 1.03 to 1.6 times that.
"""


class OneGradient:
    """n-step actor-critic and V-trace: each rollout is differentiated once, through the graph that it holds, or where
    few environments make T small graphs slow, through one of all its observations (of our networks without memory)."""

    several = False

    def __init__(self, algorithm: AlgorithmConfig, agent: Agent, num_envs: int) -> None:
        self._agent, self._entropy_cost = agent, parse_schedule(algorithm.entropy_cost)
        self.keeps_observations = num_envs <= FEW_ENVIRONMENTS and not agent.draws and not agent.initial_state(1)

    def parts(self, rollout: Rollout, generator: torch.Generator) -> Iterator[tuple[Rollout, int]]:
        yield rollout, rollout.data_points

    def refused(self) -> None:
        """Its points are lost with it."""

    def of(self, part: Rollout, data_points: int) -> tuple[Tensor, dict[str, float]]:
        cost = self._entropy_cost(data_points)
        if part.observations is not None:
            length_and_envs = part.observations.shape[:2]
            output = self._agent.forward(part.observations.flatten(0, 1), ())
            logits, values = (tensor.unflatten(0, length_and_envs) for tensor in (output.policy_logits, output.value))
            part = replace(part, policy_logits=logits, values=values)
        gradient, losses = self._agent.gradient(part, entropy_cost=cost)
        return gradient, losses | {"entropy_cost": cost}


class PpoGradients:
    """Proximal policy optimisation: epochs of minibatches, each of which is an update of its own.

    Every minibatch's gradient goes through the exchange, so that all workers take the same updates: the mean of their
    gradients is that of one minibatch made of theirs, but for advantages, which each normalises by its own minibatch:
    that of all its lanes.
    """

    several = keeps_observations = True

    def __init__(self, algorithm: AlgorithmConfig, agent: Agent, total: Total = alone) -> None:
        self._algorithm, self._agent, self._total = algorithm, agent, total
        self._entropy_cost = parse_schedule(algorithm.entropy_cost)
        self._policy_clip = parse_schedule(algorithm.policy_clip)
        self._refused = False

    def parts(self, rollout: Rollout, generator: torch.Generator) -> Iterator[tuple[PpoBatch, int]]:
        assert rollout.observations is not None
        policy = self._agent.policy(rollout.policy_logits)
        batch = ppo_batch(policy, rollout, rollout.observations, self._algorithm)
        uncounted = batch.valid.clone()  # a point is data when it enters its first update, not again in later epochs
        for positions in minibatch_positions(batch, self._algorithm, generator):
            new, self._refused = uncounted[positions], False
            yield batch.at(positions), int(new.sum())
            uncounted[positions] = new & self._refused

    def refused(self) -> None:
        self._refused = True

    def of(self, part: PpoBatch, data_points: int) -> tuple[Tensor, dict[str, float]]:
        cost = self._entropy_cost(data_points)
        output = self._agent.forward(part.observations, ())
        policy, advantages = self._agent.policy(output.policy_logits), normalised_advantages(part, self._total)
        loss = ppo_loss(
            policy,
            output.value,
            part,
            advantages,
            policy_clip=self._policy_clip(data_points),
            value_cost=self._algorithm.value_cost,
            entropy_cost=cost,
        )
        return self._agent.gradient_of(loss.total), loss.metrics | {"entropy_cost": cost}
