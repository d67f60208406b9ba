"""The actor-critic loss, once: n-step, GAE and V-trace differ only in the targets that they hand to it.

Legend: T rollout length, B environments, P distribution parameters (A logits), N = T·B.

    loss = −1/N Σ advantage·log π(a|x)  +  c_v·1/N Σ ½(V(x) − target)²  −  c_e·1/N Σ H(π(·|x))

(Mnih et al. 2016, arXiv 1602.01783, with the value cost c_v apart.) Sums run over valid steps only, and N is the same
for every rollout, the steps that do not train included: so the mean of n workers' gradients is exactly the gradient of
their joint batch. Divided by the valid steps of each worker, those of a worker that has fewer would count for more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.returns import Targets, lambda_returns
from dba3c.algorithms.rollout import Rollout
from dba3c.errors import UserError
from dba3c.networks.distributions import DiagonalGaussian, Distribution, distribution
from dba3c.own_code import calling, find


class Loss(NamedTuple):
    """A scalar to differentiate, and what is logged about it, on the same scale."""

    total: Tensor
    metrics: dict[str, float]

    @classmethod
    def of(cls, total: Tensor, numbers: dict[str, Tensor]) -> Loss:
        """All numbers are read at once: each would wait for the device."""
        values = torch.stack([total.detach(), *(number.detach() for number in numbers.values())]).tolist()
        return cls(total, dict(zip(("loss_total", *numbers), values, strict=True)))


class ActorCriticLoss:
    """Targets and loss of rollouts over one action space: ``total, metrics = loss(rollout, entropy_cost=0.01)``."""

    def __init__(self, action_space: spaces.Space, settings: AlgorithmConfig) -> None:
        self.action_space = action_space
        self.settings = settings

    def __call__(self, rollout: Rollout, *, entropy_cost: float, behaviour_log_probs: Tensor | None = None) -> Loss:
        """The loss of a rollout. behaviour_log_probs: see ``actor_critic_targets``."""
        policy = distribution(self.action_space, rollout.policy_logits)
        targets = actor_critic_targets(policy, rollout, self.settings, behaviour_log_probs)
        weights = targets.importance_weights
        return actor_critic_loss(
            policy,
            rollout.values,
            policy.log_prob(rollout.actions) * targets.advantages,
            targets,
            rollout.valid,
            value_cost=self.settings.value_cost,
            entropy_cost=entropy_cost,
            means={} if weights is None else {"importance_mean": weights},
        )


def actor_critic_targets(
    policy: Distribution,
    rollout: Rollout,
    settings: AlgorithmConfig,
    behaviour_log_probs: Tensor | None = None,
) -> Targets:
    """λ-returns, or V-trace targets where another policy acted; the graph of policy and values is not followed.

    behaviour_log_probs: [T, B] float32, log μ(a|x) when acting; None when the policy itself acted, for which the two
        are the same (all importance weights are 1).
    """
    log_ratios = None
    if behaviour_log_probs is not None:
        log_ratios = policy.log_prob(rollout.actions).detach() - behaviour_log_probs
    return lambda_returns(
        rollout.rewards,
        rollout.terminated,
        rollout.truncated,
        rollout.valid,
        rollout.values.detach(),
        rollout.bootstrap_value,
        discount=settings.discount,
        trace_lambda=settings.trace_lambda,
        log_ratios=log_ratios,
    )


def actor_critic_loss(
    policy: Distribution,
    values: Tensor,
    gains: Tensor,
    targets: Targets,
    valid: Tensor,
    *,
    value_cost: float,
    entropy_cost: float,
    means: dict[str, Tensor],
) -> Loss:
    """The loss of policy and values [T, B] (with graph) against targets [T, B]: the valid steps' sum over T·B.

    gains: [T, B], what the policy's term maximises. means: [T, B] each, more to log.

    A rollout without one valid step has loss 0 and gradient 0. In the metrics, ``loss_policy + loss_value −
    entropy_cost·entropy = loss_total``: every term is the number that is optimised, so a masked step counts as 0 in it,
    also in the entropy (nats). The other metrics are means over the valid steps.
    """
    weights = valid / max(1, valid.numel())
    shares = valid / valid.sum().clamp(min=1)
    loss_policy = -(gains * weights).sum()
    loss_value = (0.5 * value_cost) * ((values - targets.values).square() * weights).sum()
    entropy = (policy.entropy() * weights).sum()
    with torch.no_grad():
        means = {
            "value_mean": values,
            "advantage_mean": targets.advantages,
            **means,
        }
        if not isinstance(policy, DiagonalGaussian):  # whose mode has a density, and no probability
            means["max_probability"] = policy.max_probability()
        terms = {"loss_policy": loss_policy, "loss_value": loss_value, "entropy": entropy}
        numbers = terms | {name: (mean * shares).sum() for name, mean in means.items()}
    return Loss.of(loss_policy + loss_value - entropy_cost * entropy, numbers)


def own_algorithm(name: str) -> Any:
    """The class of a whole algorithm (``dba3c.workers.gradients.Gradients``, docs/own_algorithm.md) that is meant; None
    where ``name`` means a loss, or is no name of the user's."""
    found = find(name) if ":" in name else None
    return found if hasattr(found, "parts") else None


class OwnLoss(ActorCriticLoss):
    """A loss of the user's own, "package.module:Loss", in mode worker and on-policy (docs/own_loss.md): what is made
    of ``Loss(action_space, settings)`` is called with each rollout, ``loss(rollout, entropy_cost=0.01)``.

    Raises:
        UserError: it cannot be found or made; when it is called, it gave no loss.
    """

    def __init__(self, name: str, action_space: spaces.Space, settings: AlgorithmConfig) -> None:
        super().__init__(action_space, settings)
        self._name = name
        with calling(name):
            self._loss = find(name)(action_space, settings)

    def __call__(self, rollout: Rollout, *, entropy_cost: float, behaviour_log_probs: Tensor | None = None) -> Loss:
        loss = self._loss(rollout, entropy_cost=entropy_cost)
        if not isinstance(loss, Loss):
            raise UserError(f"{self._name} must give a dba3c.algorithms.actor_critic.Loss, not {type(loss).__name__}")
        if loss.total.shape:
            raise UserError(f"{self._name}: total must be a scalar, not of shape {list(loss.total.shape)}")
        return loss
