"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) on the same rollouts as the actor-critic.

Legend: T rollout length, B environments, N positions of a rollout (T·B) or of a minibatch, P distribution parameters.

    loss = −1/N Σ min(ρ·A, clip(ρ, 1 − ε, 1 + ε)·A)  +  c_v·1/N Σ ½(V − target)²  −  c_e·1/N Σ H        ρ = π/π_old

Sums run over the positions that train; the others weigh nothing, but N counts them, so that the mean of n workers'
gradients is the gradient of their joint minibatch (see ``actor_critic``). That is exact for given advantages; where
they are normalised, it is within a worker's own minibatch (of all its lanes), as in every data-parallel PPO that
averages gradients only.
The coefficients of the paper's Atari runs (table 5) are the preset ``ppo``'s: ε falls from 0.1, c_v is 2 on this scale,
3 epochs. Values are not clipped, and no epoch ends early by its KL divergence. For feed-forward networks: minibatches
are drawn point by point, so there is no state to carry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dba3c.algorithms.actor_critic import Loss, actor_critic_loss, actor_critic_targets
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.returns import Targets
from dba3c.algorithms.rollout import Rollout
from dba3c.networks.distributions import Distribution

Total = Callable[[Sequence[float]], Sequence[float]]
"""Numbers of each of a worker's processes → their sums."""


class PpoBatch(NamedTuple):
    """Positions of a rollout, without graph and without time."""

    observations: Tensor
    """[N, *S] as the environments gave them."""
    actions: Tensor
    """[N] int64, or [N, D]."""
    log_probs: Tensor
    """[N] float32: log π_old(a|x)."""
    value_targets: Tensor
    """[N] float32."""
    advantages: Tensor
    """[N] float32."""
    valid: Tensor
    """[N] bool: False where the position does not train."""

    @property
    def data_points(self) -> int:
        """Positions that train."""
        return int(self.valid.sum())

    def at(self, positions: Tensor) -> PpoBatch:
        """These alone, in this order: [M] int64."""
        return PpoBatch(*(tensor.index_select(0, positions) for tensor in self))  # a 20th of the time of tensor[…]


@torch.no_grad()
def ppo_batch(policy: Distribution, rollout: Rollout, observations: Tensor, settings: AlgorithmConfig) -> PpoBatch:
    """The positions of a rollout, with the targets that stay fixed during its epochs.

    policy: the acting one, over [T, B]. observations: [T, B, *S], the ones acted on.
    """
    targets = actor_critic_targets(policy, rollout, settings)
    log_probs = policy.log_prob(rollout.actions)
    points = (observations, rollout.actions, log_probs, targets.values, targets.advantages, rollout.valid)
    return PpoBatch(*(tensor.flatten(0, 1) for tensor in points))


def minibatches(batch: PpoBatch, settings: AlgorithmConfig, generator: torch.Generator) -> Iterator[PpoBatch]:
    """The parts of the batch that each update is made of (for algorithms of your own): see `minibatch_positions`."""
    return map(batch.at, minibatch_positions(batch, settings, generator))


def minibatch_positions(batch: PpoBatch, settings: AlgorithmConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """``ppo_epochs·ppo_minibatches`` parts of the batch: each epoch visits every position once, in an order of its own.

    Always that many and for every rollout of the same sizes, so that synchronous workers keep step and weigh alike;
    sizes differ by one at most. Where there are fewer positions than minibatches, some are empty: loss and gradient 0.
    """
    size = batch.actions.shape[0]
    for _ in range(settings.ppo_epochs):
        order = torch.randperm(size, generator=generator).to(batch.actions.device)
        yield from torch.tensor_split(order, settings.ppo_minibatches)


def alone(numbers: Sequence[float]) -> Sequence[float]:
    """The `Total` of a worker that is one process."""
    return numbers


def normalised_advantages(batch: PpoBatch, total: Total = alone) -> Tensor:
    """[N] the minibatch's, of mean 0 and deviation 1 over the positions that train: all of this worker's.

    total: sums numbers over the worker's processes, each of which has a part of the minibatch.
    """
    points = batch.advantages[batch.valid].double()
    count, summed = total((float(points.shape[0]), float(points.sum())))
    if count < 2:  # one point has no deviation: its advantage says all there is
        return batch.advantages
    mean = summed / count
    (squares,) = total((float((points - mean).square().sum()),))
    return (batch.advantages - mean) / (math.sqrt(squares / (count - 1)) + 1e-8)


_LARGEST_LOG_RATIO = 20.0


def ppo_loss(
    policy: Distribution,
    values: Tensor,
    batch: PpoBatch,
    advantages: Tensor,
    *,
    policy_clip: float,
    value_cost: float,
    entropy_cost: float,
) -> Loss:
    """The clipped loss of the present policy and values [N] (with graph) on one minibatch, for given advantages [N].

    policy_clip: ε, how far the probability ratio may leave 1 before its gradient stops.

    Logged terms of the loss are on its scale, the other metrics are means over the positions that train. Beside the
    actor-critic's metrics: ``clip_fraction``, the share of points whose ratio left 1 ± ε, and ``kl_divergence``, the
    estimate E[ρ − 1 − log ρ] of KL(π_old‖π) in nats.
    """
    log_ratios = policy.log_prob(batch.actions) - batch.log_probs
    # far outside any clip: a ratio that overflows would make the gradient of all positions NaN, even where none trains
    log_ratios = log_ratios.masked_fill(~batch.valid, 0.0).clamp(max=_LARGEST_LOG_RATIO)
    ratios = log_ratios.exp()
    clipped = ratios.clamp(1 - policy_clip, 1 + policy_clip)
    return actor_critic_loss(
        policy,
        values,
        torch.minimum(ratios * advantages, clipped * advantages),
        Targets(batch.value_targets, batch.advantages),
        batch.valid,
        value_cost=value_cost,
        entropy_cost=entropy_cost,
        means={
            "clip_fraction": (ratios - 1).abs() > policy_clip,
            "kl_divergence": ratios - 1 - log_ratios,
        },
    )
