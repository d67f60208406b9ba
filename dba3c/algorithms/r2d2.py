"""Recurrent replay distributed DQN, R2D2 (Kapturowski et al. 2019, ICLR, OpenReview r1lyTjAqYX).

Legend: L steps of a sequence that train, U burn-in steps before them, B sequences, A actions, n of the n-step return.

A sequence has U + L + 1 observations; step t is (observation_t, action_t) → (reward_t, terminated_t, truncated_t).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dba3c.algorithms.actor_critic import Loss
from dba3c.networks.actor_critic import State
from dba3c.networks.q_networks import QOutput, RecurrentQNetwork


@dataclass(frozen=True, kw_only=True)
class R2d2Settings:
    """The paper's coefficients."""

    discount: float = 0.997
    """γ per agent step."""
    n_step: int = 5
    """n of the returns."""
    burn_in: int = 40
    """U: steps that only warm the recurrent state up."""
    rescale_epsilon: float = 1e-3
    """ε of the value rescaling."""
    priority_max_weight: float = 0.9
    """η: a sequence's priority is η·max|δ| + (1 − η)·mean|δ|."""


class Sequences(NamedTuple):
    """B sequences of U + L steps, time first."""

    observations: Tensor
    """[U+L+1, B, *S]."""
    actions: Tensor
    """[U+L, B] int64."""
    rewards: Tensor
    """[U+L, B] float32."""
    terminated: Tensor
    """[U+L, B] bool."""
    truncated: Tensor
    """[U+L, B] bool."""
    valid: Tensor
    """[U+L, B] bool: False where the step does not train."""
    first: Tensor
    """[U+L+1, B] bool: where the observation begins an episode."""
    previous_action: Tensor
    """[B] int64: the action before the first observation; without meaning where that begins an episode."""
    previous_reward: Tensor
    """[B] float32: likewise."""
    state: State
    """[B, H] each: the acting network's state before the first observation."""


class R2d2Result(NamedTuple):
    """What a learner does with a batch of sequences."""

    loss: Loss
    priorities: Tensor
    """[B] float32, for the replay."""


def rescale(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """h(x) = sign(x)·(√(|x| + 1) − 1) + ε·x (Pohlen et al. 2018, arXiv 1805.11593)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """The inverse of ``rescale``: sign(x)·(((√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε)² − 1).

    It is computed in float64: in float32 the root cancels and loses half of the digits.
    """
    wide = x.double()
    root = (torch.sqrt(1 + 4 * epsilon * (wide.abs() + 1 + epsilon)) - 1) / (2 * epsilon)
    return (wide.sign() * (root.square() - 1)).to(x.dtype)


def exploration_rate(index: int, count: int, base: float = 0.4, exponent: float = 7.0) -> float:
    """ε of environment ``index`` of ``count``: base^(1 + exponent·index/(count − 1)) (Horgan et al. 2018)."""
    return base ** (1 + exponent * index / max(1, count - 1))


@torch.no_grad()
def n_step_targets(
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    bootstrap_values: Tensor,
    *,
    discount: float,
    n_step: int,
) -> Tensor:
    """n-step returns [L, B] that bootstrap from values [L+1, B] of the observations.

    G⁰_t = v_t and Gᵏ_t = r_t + γ·(1 − terminated_t)·(v_{t+1} if truncated_t else Gᵏ⁻¹_{t+1}); the result is Gⁿ. Near
    the end of the sequence fewer steps are left, and a step that is not valid has its value for a return.
    """
    discounts = discount * (~terminated)
    after = bootstrap_values[1:]
    returns = bootstrap_values[:-1]
    for _ in range(n_step):
        continued = torch.cat((returns[1:], bootstrap_values[-1:]))
        stepped = rewards + discounts * torch.where(truncated, after, continued)
        returns = torch.where(valid, stepped, bootstrap_values[:-1])
    return returns


def r2d2_loss(
    network: RecurrentQNetwork,
    target_network: RecurrentQNetwork,
    sequences: Sequences,
    importance_weights: Tensor,
    settings: R2d2Settings,
) -> R2d2Result:
    """Double-Q loss ½·δ²: summed over the valid steps after the burn-in, mean over the sequences, weighted by [B].

    As SEED RL has it (arXiv 1910.06591, agents/r2d2/learner.py). The sum over time belongs to Adam's ε of 1e-3 and the
    clipping at 40: with a mean, gradients are L times smaller, near ε, and so are the steps.

    Both networks start from the stored state and warm up over the burn-in without gradient.
    """
    online, burned = _unrolled(network, sequences, settings.burn_in)
    with torch.no_grad():
        target, _ = _unrolled(target_network, sequences, settings.burn_in)
        best = online.argmax(-1, keepdim=True)
        bootstrap_values = unrescale(target.gather(-1, best).squeeze(-1), settings.rescale_epsilon)
    returns = n_step_targets(
        burned.rewards,
        burned.terminated,
        burned.truncated,
        burned.valid,
        bootstrap_values,
        discount=settings.discount,
        n_step=settings.n_step,
    )
    chosen = online[:-1].gather(-1, burned.actions.unsqueeze(-1)).squeeze(-1)
    errors = (rescale(returns, settings.rescale_epsilon) - chosen) * burned.valid
    points = burned.valid.sum().clamp(min=1)
    total = (0.5 * errors.square().sum(0) * importance_weights).mean()
    numbers = {
        "value_mean": (chosen * burned.valid).sum() / points,
        "td_error_mean": errors.abs().sum() / points,
        "importance_mean": importance_weights.mean(),
    }
    return R2d2Result(Loss.of(total, numbers), sequence_priorities(errors, burned.valid, settings.priority_max_weight))


@torch.no_grad()
def sequence_priorities(errors: Tensor, valid: Tensor, max_weight: float = 0.9) -> Tensor:
    """[B] η·max_t|δ_t| + (1 − η)·mean_t|δ_t| over the valid steps of errors [L, B]."""
    sizes = errors.abs() * valid
    return max_weight * sizes.amax(0) + (1 - max_weight) * sizes.sum(0) / valid.sum(0).clamp(min=1)


class _Burned(NamedTuple):
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


def _unrolled(network: RecurrentQNetwork, sequences: Sequences, burn_in: int) -> tuple[Tensor, _Burned]:
    """Q-values [L+1, B, A] after the burn-in, and the steps they belong to."""
    actions = torch.cat((sequences.previous_action.unsqueeze(0), sequences.actions))
    rewards = torch.cat((sequences.previous_reward.unsqueeze(0), sequences.rewards))
    inputs = (actions, rewards, sequences.first)
    state = sequences.state
    if burn_in:
        with torch.no_grad():
            warm: QOutput = network.unroll(
                sequences.observations[:burn_in], state, *(part[:burn_in] for part in inputs)
            )
        state = warm.state
    output = network.unroll(sequences.observations[burn_in:], state, *(part[burn_in:] for part in inputs))
    return output.q_values, _Burned(*(part[burn_in:] for part in sequences[1:6]))
