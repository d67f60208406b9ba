"""Update rules on flat slices, and the clipping of a worker's gradient.

In: parameters [P] float32, a mean gradient [P], a learning rate. Out: the parameters one step on, in place. Never: a
process, a message, a file.

Every rule works element by element, so k shards that each step their slice end bit-equal to one process that steps the
whole buffer, and a state can be cut and joined along with the parameters. They are torch.optim's operations, so
bit-equal to it. Not its classes: for a part of a few KB the bookkeeping of `Optimizer.step` costs more than the update.
Not its fused kernels, although they are faster (adam, 1.7 M parameters, one core: 0.7 against 2.2 ms): they round the
last elements of a slice otherwise, so that shards would not be bit-equal to the whole.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from param_servers.config import ClipRule, OptimizerConfig, OptimizerName
from param_servers.errors import ConfigError
from param_servers.exchange import GradientExchange, Pull, Receipt
from param_servers.layout import FlatLayout, floats

State = dict[str, Tensor]
"""Moments [n] float32 and, where the rule counts, `step` [] float32, by torch.optim's names."""
Update = Callable[[OptimizerConfig, Tensor, Tensor, State, float], None]
"""(config, parameters [n], gradient [n], state, learning rate): one step in place, all float32."""

_LEAST_SQUARE = 1e-36
"""Its root, 1e-18, is far below any epsilon."""


class Rule(NamedTuple):
    """What a rule keeps for each element, whether it counts its steps, and its step."""

    moments: tuple[str, ...]
    counts: bool
    update: Update


def _sgd(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    if "momentum_buffer" in state:
        gradient = state["momentum_buffer"].mul_(config.momentum_coefficient).add_(gradient)
    parameters.add_(gradient, alpha=-rate)


def _rmsprop(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    squares = state["square_avg"]
    squares.mul_(config.decay).addcmul_(gradient, gradient, value=1 - config.decay)
    parameters.addcdiv_(gradient, _root(squares).add_(config.epsilon), value=-rate)


def _adam(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    mean, squares, steps = state["exp_avg"], state["exp_avg_sq"], state["step"].item()
    mean.lerp_(gradient, 1 - config.beta1)
    squares.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
    denominator = _root(squares).div_((1 - config.beta2**steps) ** 0.5).add_(config.epsilon)
    parameters.addcdiv_(mean, denominator, value=-rate / (1 - config.beta1**steps))


def _adagrad(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    squares = state["sum"].addcmul_(gradient, gradient)
    parameters.addcdiv_(gradient, _root(squares).add_(config.epsilon), value=-rate)


def _adadelta(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    squares, changes = state["square_avg"], state["acc_delta"]
    squares.mul_(config.decay).addcmul_(gradient, gradient, value=1 - config.decay)
    change = changes.add(config.epsilon).sqrt_().div_(squares.add(config.epsilon).sqrt_()).mul_(gradient)
    changes.mul_(config.decay).addcmul_(change, change, value=1 - config.decay)
    parameters.add_(change, alpha=-rate)


def _root(squares: Tensor) -> Tensor:
    """The square root, but never of 0, which takes Intel's MKL 20 times as long. 0 is what a parameter has that never
    had a gradient (dead units: a fifth of Nature's parameters after a minute)."""
    return squares.clamp(min=_LEAST_SQUARE).sqrt_()


_RULES: dict[OptimizerName, Rule] = {
    "sgd": Rule((), False, _sgd),
    "momentum": Rule(("momentum_buffer",), False, _sgd),
    "rmsprop": Rule(("square_avg",), True, _rmsprop),
    "adam": Rule(("exp_avg", "exp_avg_sq"), True, _adam),
    "adagrad": Rule(("sum",), True, _adagrad),
    "adadelta": Rule(("square_avg", "acc_delta"), True, _adadelta),
}


class SliceOptimizer:
    """A rule for a flat slice, which is updated whole or in parts.

    Args:
        config: the rule and its constants.
        parameters: [n] float32, updated in place.
    """

    def __init__(self, config: OptimizerConfig, parameters: Tensor) -> None:
        self._config, self._parameters = config, parameters
        self._rule = _RULES[config.optimizer]
        self.state: State = {name: torch.zeros_like(parameters) for name in self._rule.moments}
        """See `State`."""
        if self._rule.counts:
            self.state["step"] = floats().zero_()

    def step(self, part: slice, gradient: Tensor, learning_rate: float) -> None:
        """Update elements `part` with their mean gradient [stop - start].

        One update of the whole slice is one call for each of its parts in order; the last moves the counter.
        """
        state = {name: self.state[name][part] for name in self._rule.moments}
        if self._rule.counts:
            step = self.state["step"]
            state["step"] = step.add_(1) if part.stop == len(self._parameters) else step + 1
        self._rule.update(self._config, self._parameters[part], gradient, state, learning_rate)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved state in, exactly.

        Raises:
            ConfigError: the state is of another optimizer or another slice; nothing is changed then.
        """
        if set(self.state) != set(state):
            raise ConfigError(
                f"the saved optimizer state has {sorted(state)}, but this optimizer needs {sorted(self.state)}"
            )
        for name, own in self.state.items():
            if state[name].shape != own.shape:
                shapes = f"{list(state[name].shape)}, but this optimizer needs {list(own.shape)}"
                raise ConfigError(f"the saved optimizer state {name} has shape {shapes}")
        for name, own in self.state.items():
            own.copy_(state[name])


def merge_states(states: Sequence[Mapping[str, Tensor]]) -> State:
    """Join the states of consecutive shards: moments end to end, counters once.

    Raises:
        ConfigError: shards at different steps.
        KeyError: shards of different rules.
    """
    merged = {}
    for name, first in states[0].items():
        parts = [state[name] for state in states]
        if first.dim() == 0 and any(not torch.equal(part, first) for part in parts):
            raise ConfigError(f"shards disagree on the optimizer's {name}: {[part.item() for part in parts]}")
        merged[name] = first.clone() if first.dim() == 0 else torch.cat(parts)
    return merged


class ClippedExchange:
    """`GradientExchange` that clips each gradient, in place, before it goes to `inner`; the receipt says its norms.

    A worker clips the one gradient that it sends, not what its lanes add up to it.
    """

    def __init__(self, inner: GradientExchange, layout: FlatLayout, config: OptimizerConfig) -> None:
        self._inner, self._layout, self._config = inner, layout, config

    def pull(self) -> Pull:
        return self._inner.pull()

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        norms = clip_gradient(gradient, self._layout, self._config.clip_rule, self._config.clip_norm)
        return self._inner.push(gradient, step, data_points)._replace(norms=norms)

    def close(self) -> None:
        self._inner.close()


def clip_gradient(flat: Tensor, layout: FlatLayout, rule: ClipRule, clip: float) -> tuple[float, float]:
    """Clip a gradient [P] in place; return its L2 norm before and after.

    `global` scales the whole gradient to norm `clip` if it is longer (Pascanu et al., arXiv 1211.5063).
    `average_per_tensor` scales each tensor whose L2 norm / elements exceeds `clip` (the DBA3C system of 2017).
    A gradient that is not finite, or of another length, is left as it is, for the exchange to reject and count.
    """
    before = _norm(flat)
    if rule == "none" or not math.isfinite(before) or flat.shape != (layout.numel,):
        return before, before
    if rule == "global":
        if before <= clip:
            return before, before
        flat.mul_(clip / before)
        return before, clip
    for tensor in layout.views(flat).values():
        average = _norm(tensor) / max(tensor.numel(), 1)
        if average > clip:
            tensor.mul_(clip / average)
    return before, _norm(flat)


def _norm(tensor: Tensor) -> float:
    """L2 norm; in float64 where the float32 sum of squares overflows."""
    norm = float(torch.linalg.vector_norm(tensor))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
