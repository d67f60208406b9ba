"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) on the same rollouts as the actor-critic.

Legend: T rollout length, B environments, N valid data points of a rollout or a minibatch, P distribution parameters.

    loss = −1/N Σ min(ρ·A, clip(ρ, 1 − ε, 1 + ε)·A)  +  c_v·1/N Σ ½(V − target)²  −  c_e·1/N Σ H        ρ = π/π_old

For feed-forward networks: minibatches are drawn point by point, so there is no state to carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dba3c.algorithms.actor_critic import Loss, TrainableRollout
from dba3c.algorithms.distributions import Distribution
from dba3c.algorithms.returns import lambda_returns


@dataclass(frozen=True, kw_only=True)
class PpoSettings:
    """The coefficients of PPO; the defaults are the paper's for Atari but for the fixed ε and learning rate."""

    discount: float = 0.99
    """γ per agent step."""
    trace_lambda: float = 0.95
    """λ of the generalised advantage."""
    policy_clip: float = 0.2
    """ε: how far the probability ratio may leave 1 before its gradient stops."""
    value_clip: float | None = None
    """How far a value may leave its old one before its gradient stops; None does not clip."""
    value_cost: float = 0.5
    """c_v, the weight of ½(V − target)²."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatches: int = 4
    """Gradients of a pass."""
    normalise_advantages: bool = True
    """Make the advantages of each minibatch have mean 0 and deviation 1."""


class PpoBatch(NamedTuple):
    """Data points, without graph and without time."""

    observations: Tensor
    """[N, *S] as the environments gave them."""
    actions: Tensor
    """[N] int64, or [N, D]."""
    log_probs: Tensor
    """[N] float32: log π_old(a|x)."""
    values: Tensor
    """[N] float32: the old values."""
    value_targets: Tensor
    """[N] float32."""
    advantages: Tensor
    """[N] float32."""


@torch.no_grad()
def ppo_batch(policy: Distribution, rollout: TrainableRollout, observations: Tensor, settings: PpoSettings) -> PpoBatch:
    """The valid data points of a rollout, with the targets that stay fixed during its epochs.

    policy: the acting one, over [T, B]. observations: [T, B, *S], the ones acted on.
    """
    values = rollout.values.detach()
    targets = lambda_returns(
        rollout.rewards,
        rollout.terminated,
        rollout.truncated,
        rollout.valid,
        values,
        rollout.bootstrap_value,
        discount=settings.discount,
        trace_lambda=settings.trace_lambda,
    )
    log_probs = policy.log_prob(rollout.actions)
    points = (observations, rollout.actions, log_probs, values, targets.values, targets.advantages)
    return PpoBatch(*(tensor[rollout.valid] for tensor in points))


def minibatches(batch: PpoBatch, settings: PpoSettings, generator: torch.Generator) -> Iterator[PpoBatch]:
    """``epochs·minibatches`` parts of the batch: each epoch visits every point once, in an order of its own.

    Always that many, so that synchronous workers keep step; sizes differ by one at most. With fewer points than
    minibatches some are empty, and their loss and gradient are 0.
    """
    size = batch.actions.shape[0]
    for _ in range(settings.epochs):
        order = torch.randperm(size, generator=generator).to(batch.actions.device)
        for part in torch.tensor_split(order, settings.minibatches):
            yield PpoBatch(*(tensor[part] for tensor in batch))


def ppo_loss(
    policy: Distribution, values: Tensor, batch: PpoBatch, settings: PpoSettings, *, entropy_cost: float
) -> Loss:
    """The clipped loss of the present policy and values [N] (with graph) on one minibatch.

    Beside the actor-critic's metrics: ``clip_fraction``, the share of points whose ratio left 1 ± ε, and
    ``kl_divergence``, the estimate E[ρ − 1 − log ρ] of KL(π_old‖π) in nats.
    """
    scale = 1 / max(1, values.shape[0])
    log_ratios = policy.log_prob(batch.actions) - batch.log_probs
    ratios = log_ratios.exp()
    advantages = _normalised(batch.advantages) if settings.normalise_advantages else batch.advantages
    clipped = ratios.clamp(1 - settings.policy_clip, 1 + settings.policy_clip)
    loss_policy = -torch.minimum(ratios * advantages, clipped * advantages).sum() * scale
    errors = _squared_errors(values, batch, settings.value_clip)
    loss_value = (0.5 * settings.value_cost * scale) * errors.sum()
    entropy = policy.entropy().sum() * scale
    total = loss_policy + loss_value - entropy_cost * entropy
    with torch.no_grad():
        numbers = {
            "loss_total": total,
            "loss_policy": loss_policy,
            "loss_value": loss_value,
            "entropy": entropy,
            "value_mean": values.sum() * scale,
            "advantage_mean": batch.advantages.sum() * scale,
            "max_probability": policy.max_probability().sum() * scale,
            "clip_fraction": ((ratios - 1).abs() > settings.policy_clip).sum() * scale,
            "kl_divergence": (ratios - 1 - log_ratios).sum() * scale,
        }
        metrics = dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))
    return Loss(total, metrics)


def _normalised(advantages: Tensor) -> Tensor:
    if advantages.shape[0] < 2:  # one point has no deviation: its advantage says all there is
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def _squared_errors(values: Tensor, batch: PpoBatch, value_clip: float | None) -> Tensor:
    errors = (values - batch.value_targets).square()
    if value_clip is None:
        return errors
    near = batch.values + (values - batch.values).clamp(-value_clip, value_clip)
    return torch.maximum(errors, (near - batch.value_targets).square())
