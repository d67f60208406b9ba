"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv 1812.05905), and its uniform replay.

Legend: N transitions of a batch, O observation numbers, D action dimensions.

    y    = r + γ·(1 − terminated)·(min_i Q̄_i(x', a') − α·log π(a'|x'))         a' ~ π(·|x')             (eq. 6)
    J_Q  = Σ_i mean ½(Q_i(x, a) − y)²                                                                     (eq. 5)
    J_π  = mean (α·log π(ã|x) − min_i Q_i(x, ã))                               ã ~ π(·|x)               (eq. 9)
    J_α  = −mean log α·(log π(ã|x) + H̄)                                        H̄ = −D      (eq. 18, of log α)

A truncated transition is not terminated: it bootstraps from its true next observation.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dba3c.algorithms.actor_critic import Loss
from dba3c.networks.sac_networks import SacNetwork, TwinCritics


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
    discount: float,
    generator: torch.Generator | None = None,
) -> Loss:
    """J_Q + J_π + J_α, each of which moves its own parameters only, so that one backward and one step serve all.

    discount: γ per agent step.
    """
    observations = network.vector(batch.observations)
    temperature = network.log_temperature.detach().exp()
    targets = critic_targets(network, target_critics, batch, discount, generator)
    values = network.critics(observations, batch.actions)
    loss_critics = 0.5 * (values - targets).square().mean(-1).sum()
    policy = network.policy(observations)
    actions, log_probs = policy.sample_and_log_prob(generator)
    loss_policy = (temperature * log_probs - _frozen(network.critics, observations, actions).amin(0)).mean()
    entropy = -log_probs.detach().mean()
    target_entropy = -float(batch.actions.shape[-1])
    loss_temperature = network.log_temperature * (entropy - target_entropy)
    numbers = {
        "loss_policy": loss_policy,
        "loss_critic": loss_critics,
        "loss_temperature": loss_temperature,
        "entropy": entropy,
        "value_mean": values.amin(0).mean(),
        "temperature": temperature,
    }
    return Loss.of(loss_critics + loss_policy + loss_temperature, numbers)


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
    """Target parameters ← (1 − τ)·target + τ·critics, τ being ``polyak``."""
    torch._foreach_lerp_(list(target_critics.parameters()), list(critics.parameters()), polyak)


def _frozen(module: nn.Module, *inputs: Tensor) -> Tensor:
    """The module's output, whose gradient reaches the inputs and not the parameters."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return functional_call(module, parameters, inputs)


class UniformSample(NamedTuple):
    """N transitions, and which of the ring's rows they are."""

    transitions: Transitions
    rows: np.ndarray
    """[N] int64."""


class UniformReplay:
    """The last ``capacity`` transitions.

    Memory: capacity × (2 observations + action + 6 bytes), taken from the system as it fills.
    """

    def __init__(
        self, capacity: int, observation_shape: tuple[int, ...], observation_dtype: np.dtype, action_dimensions: int
    ) -> None:
        self.capacity = capacity
        self.inserted = 0
        shape = (capacity, *observation_shape)
        self._observations = np.zeros(shape, dtype=observation_dtype)
        self._next_observations = np.zeros(shape, dtype=observation_dtype)  # zeros_like would take its memory at once
        self._actions = np.zeros((capacity, action_dimensions), dtype=np.float32)
        self._rewards = np.zeros(capacity, dtype=np.float32)
        self._terminated, self._used = np.zeros(capacity, dtype=bool), np.zeros(capacity, dtype=bool)

    @property
    def memory_bytes(self) -> int:
        """All of it, full."""
        return sum(held.nbytes for held in vars(self).values() if isinstance(held, np.ndarray))

    def __len__(self) -> int:
        """Transitions held."""
        return min(self.inserted, self.capacity)

    def insert(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        next_observations: np.ndarray,
        valid: np.ndarray,
    ) -> None:
        """Add the valid ones of n transitions [n, …]; valid [n] bool is False for autoreset's extra step.

        Truncation needs no flag: the next observation is the true one, and ``terminated`` alone ends a value.
        """
        rows = (self.inserted + np.arange(int(valid.sum()))) % self.capacity
        self._observations[rows] = observations[valid]
        self._actions[rows] = actions[valid]
        self._rewards[rows] = rewards[valid]
        self._terminated[rows] = terminated[valid]
        self._next_observations[rows] = next_observations[valid]
        self._used[rows] = False
        self.inserted += len(rows)

    def sample(self, size: int, rng: np.random.Generator) -> UniformSample:
        """N = ``size`` transitions drawn uniformly with replacement."""
        rows = rng.integers(len(self), size=size)
        columns = (self._observations, self._actions, self._rewards, self._terminated, self._next_observations)
        return UniformSample(Transitions(*(torch.from_numpy(column[rows]) for column in columns)), rows)

    def fresh(self, sample: UniformSample) -> int:
        """How many of its transitions entered no update yet: its data points."""
        rows = np.unique(sample.rows)
        return int(np.count_nonzero(~self._used[rows]))

    def used(self, sample: UniformSample) -> None:
        """The sample, the newest there is, has entered an update."""
        self._used[sample.rows] = True
