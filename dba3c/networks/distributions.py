"""Action distributions, straight from a network's output: no validation, no broadcasting, no lazy tensors.

Legend: B batch (any leading shape), A actions, D dimensions of a continuous action, P distribution parameters.
"""

import math
from functools import cached_property

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from dba3c.errors import UserError

_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


class Categorical:
    """One discrete action of A, from logits [B, A]; actions are int64 [B]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @cached_property
    def log_probabilities(self) -> Tensor:
        """[B, A] normalised logits, computed once and only when asked for."""
        return functional.log_softmax(self.logits, -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Gumbel-max: argmax of logits − log E with E ~ Exp(1); no normalisation is needed."""
        with torch.no_grad():
            race = torch.empty_like(self.logits).exponential_(generator=generator).log_()
            return torch.sub(self.logits, race).argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probabilities.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """[B]; an action whose logit is −∞, which a network may mask, adds nothing to it, nor to its gradient."""
        log_probabilities = self.log_probabilities
        lowest = torch.finfo(log_probabilities.dtype).min  # 0 · −∞ would be no number
        return -(log_probabilities.exp() * log_probabilities.clamp(min=lowest)).sum(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def max_probability(self) -> Tensor:
        return self.log_probabilities.amax(-1).exp()


class MultiCategorical:
    """Independent discrete actions of sizes n_1 … n_D, from concatenated logits [B, Σn]; actions are int64 [B, D]."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.parts = [Categorical(part) for part in logits.split(sizes, -1)]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack([part.log_prob(action[..., i]) for i, part in enumerate(self.parts)]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], -1)

    def max_probability(self) -> Tensor:
        return torch.stack([part.max_probability().log() for part in self.parts]).sum(0).exp()


class DiagonalGaussian:
    """Independent normals, from (mean, log σ) concatenated [B, 2D]; actions are float32 [B, D], unbounded."""

    def __init__(self, parameters: Tensor) -> None:
        self.mean, self.log_std = parameters.chunk(2, -1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        with torch.no_grad():
            return self.reparameterised(generator)

    def reparameterised(self, generator: torch.Generator | None = None) -> Tensor:
        """Samples that gradients pass through: mean + σ·noise."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.log_std.exp() * noise

    def log_prob(self, action: Tensor) -> Tensor:
        standard = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * standard.square() - self.log_std - _LOG_SQRT_2_PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 + _LOG_SQRT_2_PI).sum(-1)

    def mode(self) -> Tensor:
        return self.mean


Distribution = Categorical | MultiCategorical | DiagonalGaussian
"""What losses and actors ask: actions by ``sample`` (without graph) or ``mode`` (the likeliest), and [B] each the
``log_prob`` of actions (a density, when continuous), the ``entropy`` in nats, of discrete ones the ``max_probability``
(the mode's)."""


class TanhGaussian:
    """A diagonal Gaussian squashed into (−1, 1) by tanh (Haarnoja et al. 2018, arXiv 1812.05905, appendix C)."""

    def __init__(self, parameters: Tensor) -> None:
        self.normal = DiagonalGaussian(parameters)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.tanh(self.normal.sample(generator))

    def sample_and_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Reparameterised actions [B, D] and their log densities [B], exact even where tanh saturates."""
        before = self.normal.reparameterised(generator)
        return torch.tanh(before), self.normal.log_prob(before) - _log_tanh_slope(before).sum(-1)

    def mode(self) -> Tensor:
        """tanh of the mean: the usual greedy action (the median, not the maximum of the density)."""
        return torch.tanh(self.normal.mean)


def _log_tanh_slope(x: Tensor) -> Tensor:
    """log(1 − tanh²x), in the form that neither overflows nor cancels."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


def parameter_count(action_space: spaces.Space) -> int:
    """P, how many numbers a network must give for one action. Raises UserError for spaces that have no distribution."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete):
        return int(action_space.nvec.sum())
    if isinstance(action_space, spaces.Box):
        return 2 * math.prod(action_space.shape)
    raise UserError(f"actions of {action_space} are not supported: there are Discrete, MultiDiscrete and Box")


def distribution(action_space: spaces.Space, parameters: Tensor) -> Distribution:
    """The on-policy distribution of ``parameters`` [B, P] over ``action_space``."""
    if isinstance(action_space, spaces.Discrete):
        return Categorical(parameters)
    if isinstance(action_space, spaces.MultiDiscrete):
        return MultiCategorical(parameters, tuple(int(n) for n in action_space.nvec.reshape(-1)))
    return DiagonalGaussian(parameters)
