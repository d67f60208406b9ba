"""What values and policies are trained towards: λ-returns, and V-trace where another policy acted.

Legend: T rollout length, B environments, π target policy, μ behaviour policy. Time t indexes the transition
(observation_t, action_t) → (reward_t, terminated_t, truncated_t), and value_t is the value of observation_t.

λ-returns (Schulman et al. 2016, arXiv 1506.02438; Sutton & Barto 2018, chapter 12), from the end (v_T is the bootstrap
value):

    δ_t = r_t + γ·(1 − terminated_t)·v_{t+1} − v_t
    A_t = valid_t·(δ_t + γ·λ·(1 − terminated_t)·(1 − truncated_t)·A_{t+1})        A_T = 0
    G_t = v_t + A_t

After the end of a game, the step that resets it is no experience (``valid`` is False): its observation is the true last
one, so that v_{t+1} is what a truncated episode bootstraps from, and its own advantage is zero. A lost life may also
count as terminated; no reset follows, and t+1 is an ordinary step. λ = 1 gives n-step returns, with n = T − t.

V-trace (Espeholt et al. 2018, arXiv 1802.01561, section 4.1):

    ρ_t = min(1, π(a_t|x_t) / μ(a_t|x_t))          c_t = λ·ρ_t                             (ρ̄ = c̄ = 1)
    δ_t = ρ_t·(r_t + γ_t·V(x_{t+1}) − V(x_t))                                          (eq. 1)
    v_t − V(x_t) = δ_t + γ_t·c_t·(v_{t+1} − V(x_{t+1}))                                (remark 1)
    advantage_t = ρ_t·(r_t + γ_t·(λ·v_{t+1} + (1 − λ)·V(x_{t+1})) − V(x_t))

The paper's policy gradient (section 4.2) is λ = 1 in the last line; weighing v_{t+1} by λ makes the on-policy case
equal to the λ-returns for every λ. γ_t is γ, or 0 where the step terminated. The corrections stop at a truncation,
where v_{t+1} is V(x_{t+1}), and a step that is not valid has v_t = V(x_t) and no advantage.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """What the actor-critic loss regresses to, without graph."""

    values: Tensor
    """[T, B] float32: the value's target; the present value where the step is not valid."""
    advantages: Tensor
    """[T, B] float32: the policy gradient's weight; 0 where the step is not valid."""
    importance_weights: Tensor | None = None
    """[T, B] float32: V-trace's ρ, by which the advantages are weighted; 0 where the step is not valid."""


@torch.no_grad()
def lambda_returns(
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    discount: float,
    trace_lambda: float = 1.0,
    log_ratios: Tensor | None = None,
) -> Targets:
    """λ-returns and advantages of a rollout; with ``log_ratios``, V-trace's.

    rewards, values: [T, B] float32. terminated, truncated, valid: [T, B] bool. bootstrap_value: [B] float32, the value
    of the observation after the last step. discount: γ in [0, 1] per agent step; trace_lambda: λ in [0, 1].
    log_ratios: [T, B] float32, log π(a_t|x_t) − log μ(a_t|x_t).
    """
    next_values = torch.cat((values[1:], bootstrap_value.unsqueeze(0)))
    discounts = discount * (~terminated)
    errors = rewards + discounts * next_values - values
    # the trace from t to t+1: none across the end of an episode, none out of a step that does not count
    traces = trace_lambda * discounts * (~truncated & valid)
    if log_ratios is None:
        advantages = discounted_sums(errors * valid, traces)
        return Targets(values + advantages, advantages)
    clipped = log_ratios.exp().clamp(max=1.0)
    rhos = clipped * valid
    corrections = discounted_sums(rhos * errors, traces * clipped)
    next_corrections = torch.cat((corrections[1:], torch.zeros_like(corrections[:1])))
    return Targets(values + corrections, rhos * (errors + traces * next_corrections), rhos)


def discounted_sums(terms: Tensor, factors: Tensor) -> Tensor:
    """y_t = terms_t + factors_t·y_{t+1} with y_T = 0, for [T, B] float tensors."""
    sums = torch.empty_like(terms)
    after = torch.zeros_like(terms[0])
    for t in range(terms.shape[0] - 1, -1, -1):
        after = torch.addcmul(terms[t], factors[t], after, out=sums[t])
    return sums
