"""The actor-critic loss, once: n-step, GAE and V-trace differ only in the targets that they hand to it.

Legend: T rollout length, B environments, P distribution parameters (A logits), N = T·B.

    loss = −1/N Σ advantage·log π(a|x)  +  c_v·1/N Σ ½(V(x) − target)²  −  c_e·1/N Σ H(π(·|x))

(Mnih et al. 2016, arXiv 1602.01783, with the value cost c_v apart.) Sums run over valid steps only, and N is the same
for every rollout, the steps that do not train included: so the mean of n workers' gradients is exactly the gradient of
their joint batch. Divided by the valid steps of each worker, those of a worker that has fewer would count for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from dba3c.algorithms.returns import Targets, lambda_returns, vtrace_targets
from dba3c.algorithms.rollout import Rollout
from dba3c.networks.distributions import Distribution, distribution


@dataclass(frozen=True, kw_only=True)
class ActorCriticSettings:
    """The coefficients of the loss and of its targets."""

    discount: float = 0.99
    """γ per agent step."""
    trace_lambda: float = 1.0
    """λ of the returns; 1 is n-step."""
    value_cost: float = 0.5
    """c_v, the weight of ½(V − target)²."""
    vtrace: bool = False
    """Correct for the behaviour policy's age (V-trace). On-policy it changes nothing."""


class Loss(NamedTuple):
    """A scalar to differentiate, and what is logged about it, on the same scale."""

    total: Tensor
    metrics: dict[str, float]


class ActorCriticLoss:
    """Targets and loss of rollouts over one action space: ``total, metrics = loss(rollout, entropy_cost=0.01)``."""

    def __init__(self, action_space: spaces.Space, settings: ActorCriticSettings) -> None:
        self.action_space = action_space
        self.settings = settings

    def __call__(self, rollout: Rollout, *, entropy_cost: float, behaviour_log_probs: Tensor | None = None) -> Loss:
        """The loss of a rollout. behaviour_log_probs: see ``actor_critic_targets``."""
        policy = distribution(self.action_space, rollout.policy_logits)
        targets = actor_critic_targets(policy, rollout, self.settings, behaviour_log_probs)
        return actor_critic_loss(
            policy,
            rollout.values,
            rollout.actions,
            targets,
            rollout.valid,
            value_cost=self.settings.value_cost,
            entropy_cost=entropy_cost,
        )


def actor_critic_targets(
    policy: Distribution,
    rollout: Rollout,
    settings: ActorCriticSettings,
    behaviour_log_probs: Tensor | None = None,
) -> Targets:
    """λ-returns, or V-trace targets when the settings say so; the graph of policy and values is not followed.

    behaviour_log_probs: [T, B] float32, log μ(a|x) when acting; None when the policy itself acted.
    """
    masks = (rollout.terminated, rollout.truncated, rollout.valid)
    inputs = (rollout.rewards, *masks, rollout.values.detach(), rollout.bootstrap_value)
    if not settings.vtrace:
        return lambda_returns(*inputs, discount=settings.discount, trace_lambda=settings.trace_lambda)
    if behaviour_log_probs is None:
        log_ratios = torch.zeros_like(rollout.rewards)
    else:
        log_ratios = policy.log_prob(rollout.actions).detach() - behaviour_log_probs
    return vtrace_targets(log_ratios, *inputs, discount=settings.discount, trace_lambda=settings.trace_lambda)


def actor_critic_loss(
    policy: Distribution,
    values: Tensor,
    actions: Tensor,
    targets: Targets,
    valid: Tensor,
    *,
    value_cost: float,
    entropy_cost: float,
) -> Loss:
    """The loss of policy and values [T, B] (with graph) against targets [T, B]: the valid steps' sum over T·B.

    A rollout without one valid step has loss 0 and gradient 0. In the metrics, ``loss_policy + loss_value −
    entropy_cost·entropy = loss_total``: every term is the number that is optimised, so a masked step counts as 0 in it,
    also in the entropy (nats). The other metrics are means over the valid steps.
    """
    weights = valid / valid.numel()
    shares = valid / valid.sum().clamp(min=1)
    loss_policy = -(policy.log_prob(actions) * targets.advantages * weights).sum()
    loss_value = (0.5 * value_cost) * ((values - targets.values).square() * weights).sum()
    entropy = (policy.entropy() * weights).sum()
    total = loss_policy + loss_value - entropy_cost * entropy
    with torch.no_grad():
        numbers = {
            "loss_total": total,
            "loss_policy": loss_policy,
            "loss_value": loss_value,
            "entropy": entropy,
            "value_mean": (values * shares).sum(),
            "advantage_mean": (targets.advantages * shares).sum(),
            "max_probability": (policy.max_probability() * shares).sum(),
        }
        if targets.importance_weights is not None:
            numbers["importance_mean"] = (targets.importance_weights * shares).sum()
        metrics = dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))
    return Loss(total, metrics)
