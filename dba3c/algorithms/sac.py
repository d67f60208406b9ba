"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv 1812.05905).

Legend: N transitions of a batch, O observation numbers, D action dimensions.

    y    = r + γ·(1 − terminated)·(min_i Q̄_i(x', a') − α·log π(a'|x'))         a' ~ π(·|x')             (eq. 6)
    J_Q  = Σ_i mean ½(Q_i(x, a) − y)²                                                                     (eq. 5)
    J_π  = mean (α·log π(ã|x) − min_i Q_i(x, ã))                               ã ~ π(·|x)               (eq. 9)
    J_α  = −mean log α·(log π(ã|x) + H̄)                                        H̄ = −D unless given     (eq. 18)

A truncated transition is not terminated: it bootstraps from its true next observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dba3c.algorithms.actor_critic import Loss
from dba3c.networks.sac_networks import SacNetwork, TwinCritics


@dataclass(frozen=True, kw_only=True)
class SacSettings:
    """The paper's coefficients."""

    discount: float = 0.99
    """γ per agent step."""
    polyak: float = 0.005
    """τ: how far the target critics move towards the critics after each update."""
    target_entropy: float | None = None
    """H̄ in nats; None is −D."""


class Transitions(NamedTuple):
    """N transitions."""

    observations: Tensor
    """[N, …] as the environment gave them."""
    actions: Tensor
    """[N, D] float32 in (−1, 1)."""
    rewards: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool."""
    next_observations: Tensor
    """[N, …]: the true one, also where the episode ended."""


def sac_loss(
    network: SacNetwork,
    target_critics: TwinCritics,
    batch: Transitions,
    settings: SacSettings,
    generator: torch.Generator | None = None,
) -> Loss:
    """J_Q + J_π + J_α, each of which moves its own parameters only, so that one backward and one step serve all."""
    observations = network.vector(batch.observations)
    temperature = network.log_temperature.detach().exp()
    targets = critic_targets(network, target_critics, batch, settings.discount, generator)
    loss_critics = 0.5 * (network.critics(observations, batch.actions) - targets).square().mean(-1).sum()
    policy = network.policy(observations)
    actions, log_probs = policy.sample_and_log_prob(generator)
    loss_policy = (temperature * log_probs - _frozen(network.critics, observations, actions).amin(0)).mean()
    entropy = -log_probs.detach().mean()
    target_entropy = -float(batch.actions.shape[-1]) if settings.target_entropy is None else settings.target_entropy
    loss_temperature = network.log_temperature * (entropy - target_entropy)
    total = loss_critics + loss_policy + loss_temperature
    with torch.no_grad():
        numbers = {
            "loss_total": total,
            "loss_policy": loss_policy,
            "loss_critic": loss_critics,
            "loss_temperature": loss_temperature,
            "entropy": entropy,
            "value_mean": targets.mean(),
            "temperature": temperature,
        }
        metrics = dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))
    return Loss(total, metrics)


@torch.no_grad()
def critic_targets(
    network: SacNetwork,
    target_critics: TwinCritics,
    batch: Transitions,
    discount: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """y [N] float32, the soft value one step on."""
    observations = network.vector(batch.next_observations)
    actions, log_probs = network.policy(observations).sample_and_log_prob(generator)
    soft_values = target_critics(observations, actions).amin(0) - network.log_temperature.exp() * log_probs
    return batch.rewards + discount * (~batch.terminated) * soft_values


@torch.no_grad()
def move_targets(target_critics: TwinCritics, critics: TwinCritics, polyak: float) -> None:
    """Target parameters ← (1 − τ)·target + τ·critics."""
    torch._foreach_lerp_(list(target_critics.parameters()), list(critics.parameters()), polyak)


def _frozen(module: nn.Module, *inputs: Tensor) -> Tensor:
    """The module's output, whose gradient reaches the inputs and not the parameters."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return functional_call(module, parameters, inputs)
