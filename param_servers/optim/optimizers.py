"""torch.optim on one flat slice, its state as plain tensors, and gradient clipping.

Every rule here works element by element, so k shards that each step their slice end bit-equal to one process that
steps the whole buffer, and a state can be cut and joined along with the parameters.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from param_servers.config import ClipRule, OptimizerConfig
from param_servers.errors import ConfigError
from param_servers.layout import FlatLayout
from param_servers.optim.update_rules import State, rule_of


class SliceOptimizer:
    """A rule for a flat slice, which is updated whole or in parts.

    Args:
        config: the rule and its constants.
        parameters: [n] float32, updated in place.
    """

    def __init__(self, config: OptimizerConfig, parameters: Tensor) -> None:
        if parameters.dtype != torch.float32 or parameters.dim() != 1:
            what = f"{parameters.dtype} {list(parameters.shape)}"
            raise ConfigError(f"an optimizer needs a flat float32 slice, got {what}")
        self._config, self._parameters = config, parameters
        self._rule = rule_of(config)
        self.state: State = {name: torch.zeros_like(parameters) for name in self._rule.moments}
        """See `update_rules.State`."""
        if self._rule.counts:
            self.state["step"] = torch.zeros(())

    def step(self, part: slice, gradient: Tensor, learning_rate: float) -> None:
        """Update elements `part` with their mean gradient [stop - start].

        One update of the whole slice is one call for each of its parts in order; the last moves the counter.
        """
        state = {name: self.state[name][part] for name in self._rule.moments}
        if self._rule.counts:
            step = self.state["step"]
            state["step"] = step if part.stop == len(self._parameters) else step.clone()
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


def slice_state(state: Mapping[str, Tensor], part: slice) -> State:
    """The state of one shard: moments [stop - start] as views, scalars whole."""
    return {name: tensor if tensor.dim() == 0 else tensor[part] for name, tensor in state.items()}


def merge_states(states: Sequence[Mapping[str, Tensor]]) -> State:
    """Join the states of consecutive shards; the inverse of `slice_state`.

    Raises:
        ConfigError: shards of different rules or at different steps.
    """
    merged = {}
    for name, first in states[0].items():
        parts = [state[name] for state in states if name in state]
        if len(parts) != len(states):
            raise ConfigError(f"not every shard has the optimizer state {name}")
        if first.dim() == 0 and any(not torch.equal(part, first) for part in parts):
            raise ConfigError(f"shards disagree on the optimizer's {name}: {[part.item() for part in parts]}")
        merged[name] = first.clone() if first.dim() == 0 else torch.cat(parts)
    return merged


def clip_gradient(flat: Tensor, layout: FlatLayout, rule: ClipRule, clip: float) -> tuple[float, float]:
    """Clip a gradient [P] in place; return its L2 norm before and after.

    `global` scales the whole gradient to norm `clip` if it is longer (Pascanu et al., arXiv 1211.5063).
    `average_per_tensor` scales each tensor whose L2 norm / elements exceeds `clip` (the DBA3C system of 2017).
    A gradient that is not finite is left as it is, for the exchange to reject and count.
    """
    before = _norm(flat)
    if rule == "none" or not math.isfinite(before):
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
