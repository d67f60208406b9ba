"""The update rules, as calls of torch.optim's functions on one part of a slice.

Not its classes: for a part of a few KB the bookkeeping of `Optimizer.step` costs more than the update (RMSprop, 1,536
elements, in turn on one core: 72 against 33 us). Not the fused kernels, although they are faster (adam, 1.7 M
parameters, one core: 0.7 against 2.2 ms): they round the last elements of a slice otherwise, so that shards would not
be bit-equal to the whole. And not foreach, which gains nothing for one tensor.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from param_servers.config import OptimizerConfig, OptimizerName

State = dict[str, Tensor]
"""Moments [n] float32 and, where the rule counts, `step` [] float32, by torch.optim's names."""
Update = Callable[[OptimizerConfig, Tensor, Tensor, State, float], None]
"""(config, parameters [n], gradient [n], state, learning rate): one step in place, all float32."""


class Rule(NamedTuple):
    """What a rule keeps for each element, whether it counts its steps, and its step."""

    moments: tuple[str, ...]
    counts: bool
    update: Update


def _sgd(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    buffer = state.get("momentum_buffer")
    momentum = 0.0 if buffer is None else config.momentum_coefficient
    sgd(
        [parameters], [gradient], [buffer], foreach=False, weight_decay=0.0, momentum=momentum, lr=rate,
        dampening=0.0, nesterov=False, maximize=False,
    )  # fmt: skip


def _rmsprop(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    rmsprop(
        [parameters], [gradient], [state["square_avg"]], [], [], [state["step"]], foreach=False, lr=rate,
        alpha=config.decay, eps=config.epsilon, weight_decay=0.0, momentum=0.0, centered=False,
    )  # fmt: skip


def _adam(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    adam(
        [parameters], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]], foreach=False,
        amsgrad=False, beta1=config.beta1, beta2=config.beta2, lr=rate, weight_decay=0.0, eps=config.epsilon,
        maximize=False,
    )  # fmt: skip


def _adagrad(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    adagrad(
        [parameters], [gradient], [state["sum"]], [state["step"]], foreach=False, lr=rate, weight_decay=0.0,
        lr_decay=0.0, eps=config.epsilon, maximize=False,
    )  # fmt: skip


def _adadelta(config: OptimizerConfig, parameters: Tensor, gradient: Tensor, state: State, rate: float) -> None:
    adadelta(
        [parameters], [gradient], [state["square_avg"]], [state["acc_delta"]], [state["step"]], foreach=False, lr=rate,
        rho=config.decay, eps=config.epsilon, weight_decay=0.0, maximize=False,
    )  # fmt: skip


_RULES: dict[OptimizerName, Rule] = {
    "sgd": Rule((), False, _sgd),
    "momentum": Rule(("momentum_buffer",), False, _sgd),
    "rmsprop": Rule(("square_avg",), True, _rmsprop),
    "adam": Rule(("exp_avg", "exp_avg_sq"), True, _adam),
    "adagrad": Rule(("sum",), True, _adagrad),
    "adadelta": Rule(("square_avg", "acc_delta"), True, _adadelta),
}


def rule_of(config: OptimizerConfig) -> Rule:
    """The configuration's rule. Momentum 0 keeps no buffer, as in torch.optim."""
    without = config.optimizer == "momentum" and not config.momentum_coefficient
    return _RULES["sgd" if without else config.optimizer]
