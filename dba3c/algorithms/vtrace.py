"""V-trace: off-policy corrected targets (Espeholt et al. 2018, arXiv 1802.01561, section 4.1).

Legend: T unroll length, B environments, π target policy, μ behaviour policy. Time t as in ``returns``.

    ρ_t = min(ρ̄, π(a_t|x_t) / μ(a_t|x_t))          c_t = λ·min(c̄, π(a_t|x_t) / μ(a_t|x_t))
    δ_t = ρ_t·(r_t + γ_t·V(x_{t+1}) − V(x_t))                                          (eq. 1)
    v_t − V(x_t) = δ_t + γ_t·c_t·(v_{t+1} − V(x_{t+1}))                                (remark 1)
    advantage_t = ρ_t·(r_t + γ_t·(λ·v_{t+1} + (1 − λ)·V(x_{t+1})) − V(x_t))

The paper's policy gradient (section 4.2) is λ = 1 in the last line; weighing v_{t+1} by λ makes the on-policy case
equal to ``lambda_returns`` for every λ. γ_t is γ, or 0 where the step terminated. The corrections stop at a truncation,
where v_{t+1} is V(x_{t+1}), and a step that is not valid has v_t = V(x_t) and no advantage.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dba3c.algorithms.returns import Targets, discounted_sums


@torch.no_grad()
def vtrace_targets(
    log_ratios: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    *,
    discount: float,
    trace_lambda: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> Targets:
    """V-trace targets and advantages of an unroll.

    log_ratios: [T, B] float32, log π(a_t|x_t) − log μ(a_t|x_t). The others as in ``lambda_returns``.
    rho_clip, c_clip: ρ̄ ≥ c̄ > 0.
    """
    ratios = log_ratios.exp()
    rhos = ratios.clamp(max=rho_clip) * valid
    next_values = torch.cat((values[1:], bootstrap_value.unsqueeze(0)))
    discounts = discount * (~terminated)
    one_step_errors = rewards + discounts * next_values - values
    # the trace from t to t+1: none across the end of an episode, none out of a step that does not count
    traces = trace_lambda * discounts * (~truncated & valid)
    corrections = discounted_sums(rhos * one_step_errors, traces * ratios.clamp(max=c_clip))
    next_corrections = torch.cat((corrections[1:], torch.zeros_like(corrections[:1])))
    advantages = rhos * (one_step_errors + traces * next_corrections)
    return Targets(values + corrections, advantages, rhos)
