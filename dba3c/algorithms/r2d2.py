"""Recurrent replay distributed DQN, R2D2 (Kapturowski et al. 2019, ICLR, OpenReview r1lyTjAqYX).

Legend: L steps of a sequence that train, U burn-in steps before them, B sequences, A actions, n of the n-step return.

A sequence has U + L + 1 observations; step t is (observation_t, action_t) → (reward_t, terminated_t, truncated_t).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dba3c.algorithms.actor_critic import Loss
from dba3c.networks.actor_critic import State
from dba3c.networks.q_networks import RecurrentQNetwork

RESCALE_EPSILON = 1e-3
"""ε of the value rescaling; it and η are the paper's."""
PRIORITY_MAX_WEIGHT = 0.9
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


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x)·(√(|x| + 1) − 1) + ε·x (Pohlen et al. 2018, arXiv 1805.11593)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + RESCALE_EPSILON * x


def unrescale(x: Tensor) -> Tensor:
    """The inverse of ``rescale``: sign(x)·(((√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε)² − 1).

    It is computed in float64: in float32 the root cancels and loses half of the digits.
    """
    wide, epsilon = x.double(), RESCALE_EPSILON
    root = (torch.sqrt(1 + 4 * epsilon * (wide.abs() + 1 + epsilon)) - 1) / (2 * epsilon)
    return (wide.sign() * (root.square() - 1)).to(x.dtype)


def exploration_rate(index: int, count: int) -> float:
    """ε of environment ``index`` of ``count``: 0.4^(1 + 7·index/(count − 1)) (Horgan et al. 2018, arXiv 1803.00933)."""
    return float(0.4 ** (1 + 7 * index / max(1, count - 1)))


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
    *,
    discount: float,
    n_step: int,
    burn_in: int,
) -> tuple[Loss, Tensor]:
    """Double-Q loss ½·δ²: summed over the valid steps after the burn-in, mean over the sequences, weighted by [B]; and
    the sequences' priorities [B] float32.

    As SEED RL has it (arXiv 1910.06591, agents/r2d2/learner.py). The sum over time belongs to Adam's ε of 1e-3 and the
    clipping at 40: with a mean, gradients are L times smaller, near ε, and so are the steps.

    Both networks start from the stored state and warm up over the burn-in without gradient.
    """
    online = _q_values(network, sequences, burn_in)
    with torch.no_grad():
        target = _q_values(target_network, sequences, burn_in)
        best = online.argmax(-1, keepdim=True)
        bootstrap_values = unrescale(target.gather(-1, best).squeeze(-1))
    actions, rewards, terminated, truncated, valid = (part[burn_in:] for part in sequences[1:6])
    returns = n_step_targets(rewards, terminated, truncated, valid, bootstrap_values, discount=discount, n_step=n_step)
    chosen = online[:-1].gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    errors = (rescale(returns) - chosen) * valid
    points = valid.sum().clamp(min=1)
    total = (0.5 * errors.square().sum(0) * importance_weights).mean()
    numbers = {
        "value_mean": (unrescale(chosen.detach()) * valid).sum() / points,
        "td_error_mean": errors.abs().sum() / points,
        "importance_mean": importance_weights.mean(),
    }
    return Loss.of(total, numbers), sequence_priorities(errors, valid)


@torch.no_grad()
def sequence_priorities(errors: Tensor, valid: Tensor) -> Tensor:
    """[B] η·max_t|δ_t| + (1 − η)·mean_t|δ_t| over the valid steps of errors [L, B]."""
    sizes, eta = errors.abs() * valid, PRIORITY_MAX_WEIGHT
    return eta * sizes.amax(0) + (1 - eta) * sizes.sum(0) / valid.sum(0).clamp(min=1)


def _q_values(network: RecurrentQNetwork, sequences: Sequences, burn_in: int) -> Tensor:
    """Q-values [L+1, B, A] after the burn-in."""
    actions = torch.cat((sequences.previous_action.unsqueeze(0), sequences.actions))
    rewards = torch.cat((sequences.previous_reward.unsqueeze(0), sequences.rewards))
    inputs = (actions, rewards, sequences.first)
    state = sequences.state
    if burn_in:
        with torch.no_grad():
            before = (part[:burn_in] for part in inputs)
            state = network.unroll(sequences.observations[:burn_in], state, *before).state
    return network.unroll(sequences.observations[burn_in:], state, *(part[burn_in:] for part in inputs)).q_values
