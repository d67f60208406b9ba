"""Where each tensor of a model lives in the one flat float32 buffer that is exchanged, and which server owns what.

The buffer is the tensors laid end to end in the layout's order, without padding. It is cut anywhere, so that every
server carries the same load: every shard is one contiguous slice.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from param_servers.errors import ConfigError

if TYPE_CHECKING:  # settings and launchers import this module, and torch costs them seconds and a hundred megabytes
    from torch import Tensor, nn

_NAMED = 4
"""An error names at most so many of the tensors that differ."""


@dataclass(frozen=True)
class FlatLayout:
    """Names and shapes of tensors, in buffer order.

    >>> layout = FlatLayout.of({"weight": (2, 3), "bias": (2,)})
    >>> layout.offsets, layout.numel
    ((0, 6), 8)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ConfigError(f"tensor names in a layout must differ; given twice: {', '.join(twice)}")
        if self.numel == 0:
            raise ConfigError("a layout needs at least one element, but its tensors are empty")

    @classmethod
    def of(cls, named_shapes: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]]) -> FlatLayout:
        """Layout of a mapping or pairs, in their order."""
        pairs = list(named_shapes.items() if isinstance(named_shapes, Mapping) else named_shapes)
        return cls(tuple(name for name, _ in pairs), tuple(tuple(int(size) for size in shape) for _, shape in pairs))

    @classmethod
    def of_module(cls, module: nn.Module) -> FlatLayout:
        """Layout of a module's parameters, in the order of `named_parameters()`. Buffers are not exchanged.

        Raises ConfigError: one is complex, or has no values yet (a lazy module's, one on "meta").
        """
        from torch.nn.parameter import is_lazy

        for name, parameter in module.named_parameters():
            if is_lazy(parameter) or parameter.is_meta or parameter.is_complex():
                what = "complex" if not is_lazy(parameter) and parameter.is_complex() else "without values yet"
                raise ConfigError(f"the parameter {name} is {what}: float32 numbers are exchanged")
        return cls.of([(name, parameter.shape) for name, parameter in module.named_parameters()])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor starts in the buffer, in elements."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    @cached_property
    def numel(self) -> int:
        """P, the elements of the whole buffer."""
        return sum(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that two processes compare to know that they hold the same layout."""
        lines = "\n".join(f"{name!r}:{shape}" for name, shape in zip(self.names, self.shapes, strict=True))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each tensor as a view into `flat` [P]; writing to a view writes to the buffer."""
        self.check(flat)
        parts = zip(self.names, self.shapes, self.offsets, self.sizes, strict=True)
        return {name: flat[start : start + size].view(shape) for name, shape, start, size in parts}

    def refuse_another(self, other: FlatLayout) -> None:
        """Raise ConfigError where another layout has other tensors, or another order; those that differ are named."""
        if other == self:
            return
        here, there = (dict(zip(each.names, each.shapes, strict=True)) for each in (other, self))
        differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        named = "; ".join(_difference(name, here.get(name), there.get(name)) for name in differing[:_NAMED])
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        raise ConfigError(named + more or "its tensors are in another order")

    def flatten(self, module: nn.Module) -> Tensor:
        """A new buffer [P] float32 with the module's parameters, in this layout's order."""
        import torch

        flat = floats(self.numel)
        with torch.no_grad():
            for parameter, view in self._pairs(module, flat):
                view.copy_(parameter)
        return flat

    def load(self, module: nn.Module, flat: Tensor) -> None:
        """Copy a buffer [P] into the module's parameters."""
        import torch

        with torch.no_grad():
            for parameter, view in self._pairs(module, flat):
                parameter.copy_(view)

    def gradient(self, module: nn.Module, loss: Tensor) -> Tensor:
        """A new buffer [P] float32 in this layout's order: the gradient of a scalar with respect to the module's
        parameters; zeros for those that are frozen, or that the scalar does not depend on."""
        import torch

        flat = floats(self.numel).zero_()
        trained = [(parameter, view) for parameter, view in self._pairs(module, flat) if parameter.requires_grad]
        if not trained or not loss.requires_grad:
            return flat
        gradients = torch.autograd.grad(loss, [parameter for parameter, _ in trained], allow_unused=True)
        for gradient, (_, view) in zip(gradients, trained, strict=True):
            if gradient is not None:
                view.copy_(gradient.to_dense())  # an embedding's may be sparse
        return flat

    def _pairs(self, module: nn.Module, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        parameters = dict(module.named_parameters())
        for name, view in self.views(flat).items():
            if name not in parameters or parameters[name].shape != view.shape:
                raise ConfigError(f"the module has no parameter {name} of shape {tuple(view.shape)}")
            yield parameters[name], view

    def check(self, flat: Tensor) -> None:
        """Raise ConfigError unless `flat` is [P]."""
        if flat.shape != (self.numel,):
            raise ConfigError(f"a flat buffer of shape [{self.numel}] is needed, got {list(flat.shape)}")


def _difference(name: str, here: tuple[int, ...] | None, there: tuple[int, ...] | None) -> str:
    if there is None:
        return f"it has no {name} {list(here or ())}"
    if here is None:
        return f"it has {name} {list(there)} too"
    return f"its {name} is {list(there)} instead of {list(here)}"


@dataclass(frozen=True)
class ShardPlan:
    """Shard i owns `flat[cuts[i]:cuts[i + 1]]` of a buffer in the order of `layout`."""

    layout: FlatLayout
    cuts: tuple[int, ...]

    @property
    def num_shards(self) -> int:
        return len(self.cuts) - 1

    def slice_of(self, shard: int) -> slice:
        """The elements of the flat buffer that `shard` owns."""
        return slice(self.cuts[shard], self.cuts[shard + 1])

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over layout and cuts; equal in all processes of a run."""
        return hashlib.sha256(f"{self.layout.fingerprint}:{self.cuts}".encode()).hexdigest()[:16]

    def fingerprint_of(self, asynchronous: bool) -> str:
        """Layout, cuts and mode: who believes in another one would wait for answers that nobody gives."""
        return f"{self.fingerprint[:15]}~" if asynchronous else self.fingerprint


def plan_shards(layout: FlatLayout, num_shards: int) -> ShardPlan:
    """Plan `num_shards` even slices. Raises ConfigError: none, or more than there are elements."""
    num_shards = operator.index(num_shards)
    if num_shards < 1:
        raise ConfigError(f"num_servers must be at least 1, got {num_shards}")
    if num_shards > layout.numel:
        raise ConfigError(f"{layout.numel} parameters cannot be cut into {num_shards} shards: use fewer servers")
    return ShardPlan(layout, tuple(layout.numel * shard // num_shards for shard in range(num_shards + 1)))


def floats(*shape: int) -> Tensor:
    """A new tensor, not yet filled: float32 on the CPU, whatever torch's defaults are in the caller's program."""
    import torch

    return torch.empty(shape, dtype=torch.float32, device="cpu")


def as_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return tensor.detach().numpy().data.cast("B")
