"""One shard's tensors: the gradient slices that it holds while a step is open, its slice of the parameters, its
optimizer, and the update. No sockets.

A gradient slice is named by (worker, incarnation, sequence): `sequence` numbers a worker's pushes, the same on every
shard, so a repeated or reordered frame is recognised and counted at most once, and a push that another shard rejected
can be replaced by the worker's next one.

The slice is updated in parts: no more at once than stays in the processor's cache, and as little as has arrived. Since
every optimizer here works element by element, parts change nothing in the result.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from param_servers.config import OptimizerConfig
from param_servers.errors import CheckpointError, ConfigError, ParamServersError
from param_servers.layout import floats
from param_servers.optim import SliceOptimizer, State
from param_servers.servers.step_commits import Key
from param_servers.wire.messages import Code, Row

LARGEST = 1e18
"""A larger element counts as not finite, in every mode: sums of such gradients, and their squares in the optimizer's
moments, would overflow (float32 ends at 3.4e38), and the update of finite gradients would not be finite."""
Elements = npt.NDArray[np.float32]
LARGEST_PART, PART_MULTIPLE = 65536, 64
"""Elements: 256 KB stay in the cache; a multiple, so that vector instructions do the same everywhere."""
MOMENTS = {
    "exp_avg": "first_moment_norm",
    "momentum_buffer": "first_moment_norm",
    "exp_avg_sq": "second_moment_norm",
    "square_avg": "second_moment_norm",
    "sum": "second_moment_norm",
}
"""torch.optim's names of running means of the gradient, and of its square."""


class Slice(NamedTuple):
    """A complete gradient slice [n] float32 and the push it belongs to."""

    sequence: int
    step: int
    gradient: Tensor


class Accumulator:
    """Slices of one shard of `numel` elements.

    Args:
        numel: n, elements of this shard.
        keeps_older: True in asynchronous mode, where a slice may have been computed on an older step.
    """

    def __init__(self, numel: int, *, keeps_older: bool = False) -> None:
        self.numel = numel
        self.step = 0
        self._keeps_older = keeps_older
        self._slices: dict[Key, Slice] = {}
        self._decided: dict[Key, int] = {}
        self._spare: list[Tensor] = []

    def restart(self, step: int) -> None:
        """Forget every slice and go on from `step` (after a roll-back). Decided sequences stay decided."""
        self._release(list(self._slices))
        self.step = step

    def add(self, worker: int, incarnation: int, sequence: int, step: int, gradient: Tensor) -> Code:
        """Take a complete slice [n].

        Returns:
            NONE: held; ACCEPTED: held or decided before (a repetition, nothing to do); STALE: of an older step;
            NON_FINITE (see `is_usable`): rejected.
        """
        key = (worker, incarnation)
        held = self._slices.get(key)
        if sequence <= self._decided.get(key, 0) or (held is not None and sequence <= held.sequence):
            return Code.ACCEPTED
        if step > self.step or (step < self.step and not self._keeps_older):
            return Code.STALE
        if not is_usable(gradient):
            return Code.NON_FINITE
        self._release([key])
        self._slices[key] = Slice(sequence, step, gradient)
        return Code.NONE

    def gradients(self, members: Iterable[Row]) -> list[Tensor]:
        """The slices of a committed set, in ascending worker order, which fixes the order of the sum.

        Raises:
            ParamServersError: a member's slice is not held; the coordinator only commits slices reported complete.
        """
        found = []
        for row in sorted(members):
            held = self._slices.get((row.worker, row.incarnation))
            if held is None or held.sequence != row.sequence:
                raise ParamServersError(
                    f"step {self.step} commits push {row.sequence} of worker {row.worker}, which is not held here"
                )
            found.append(held.gradient)
        return found

    def committed(self, members: Iterable[Row]) -> int:
        """Close the step: the members are decided; in synchronous mode all other slices are stale now.

        Returns: how many slices were held in vain.
        """
        for row in members:
            self.decide(row)
        self.step += 1
        if self._keeps_older:
            return 0
        stale = len(self._slices)
        self._release(list(self._slices))
        return stale

    def decide(self, row: Row) -> None:
        """This push has its answer; it will not be taken again. A later one stays."""
        key = (row.worker, row.incarnation)
        self._decided[key] = max(self._decided.get(key, 0), row.sequence)
        if (held := self._slices.get(key)) is not None and held.sequence <= row.sequence:
            self._release([key])

    def forget(self, worker: int, incarnation: int) -> None:
        """Drop what this and earlier incarnations of a worker pushed: the coordinator will not commit it."""
        self._release([key for key in self._slices if key[0] == worker and key[1] <= incarnation])

    @property
    def count(self) -> int:
        return len(self._slices)

    def held(self, worker: int, incarnation: int) -> Slice | None:
        return self._slices.get((worker, incarnation))

    def spare(self) -> Tensor:
        """A buffer [n] to receive a slice into; decided slices give theirs back."""
        return self._spare.pop() if self._spare else floats(self.numel)

    def _release(self, keys: Iterable[Key]) -> None:
        for key in keys:
            held = self._slices.pop(key, None)
            if held is not None:
                self._spare.append(held.gradient)


def mean_into(out: Elements, gradients: Sequence[Elements]) -> None:
    """Mean of `gradients` (each [n] float32) into `out` [n]: summed from the first to the last, then divided.

    NumPy and not torch: a part of a slice has a few KB, and a torch call costs as much as adding them (8 parts of
    1,536 elements, cut out and averaged, in turn on one core: 23 against 31 us).
    """
    out[:] = gradients[0]
    with np.errstate(over="ignore", invalid="ignore"):  # it may not be known yet whether they are finite
        for gradient in gradients[1:]:
            np.add(out, gradient, out=out)
    np.divide(out, len(gradients), out=out)


def is_usable(tensor: Tensor) -> bool:
    """Whether a gradient [n] may enter an update: every element is finite and at most `LARGEST`.

    The squares of all elements together bound each of them, in one pass without temporaries; only where they add up
    to more is a closer look taken.
    """
    tensor = tensor.float()  # in half precision the bound itself is infinite
    return torch.dot(tensor, tensor).item() <= LARGEST**2 or bool((tensor.abs() <= LARGEST).all())


class Shard:
    """Parameters [n] float32 of one shard and their optimizer.

    Args:
        parameters: [n] float32, copied.
        config: the update rule and its learning rate over data points.
    """

    def __init__(self, parameters: Tensor, config: OptimizerConfig) -> None:
        self.learning_rate = config.schedule
        """Of the step that begins with so many data points committed."""
        self.parameters = parameters.detach().to(torch.float32).clone().contiguous()
        self.numel = self.parameters.numel()
        self._optimizer = SliceOptimizer(config, self.parameters)
        self._kept: State = {}
        """The optimizer's state as it was when `keep` was called."""
        self._mean = floats(min(self.numel, LARGEST_PART))
        self._published: Tensor | None = None
        self._measured_from: Tensor | None = None
        self.update_norm: float | None = None
        """L2 norm of the change that the measured update made; None until it is committed."""
        self.aggregating_s = self.applying_s = 0.0

    def parts(self, start: int, stop: int) -> Iterator[slice]:
        """[start, stop) in pieces of at most `LARGEST_PART`."""
        for begin in range(start, stop, LARGEST_PART):
            yield slice(begin, min(begin + LARGEST_PART, stop))

    def update_part(self, part: slice, gradients: Sequence[Elements], learning_rate: float) -> None:
        """Average a part of `gradients` (each [n]) and step with it; an update is all parts in order."""
        start_s = time.perf_counter()
        parts = [gradient[part] for gradient in gradients]
        mean = torch.from_numpy(parts[0]) if len(parts) == 1 else self._mean[: part.stop - part.start]
        if len(parts) > 1:
            mean_into(mean.numpy(), parts)
        averaged_s = time.perf_counter()
        self._optimizer.step(part, mean, learning_rate)
        self.aggregating_s += averaged_s - start_s
        self.applying_s += time.perf_counter() - averaged_s

    def apply(self, gradients: list[Tensor], learning_rate: float) -> None:
        """One update with the mean of `gradients`, each [n] float32, in the order given."""
        elements = [gradient.numpy() for gradient in gradients]
        for part in self.parts(0, self.numel):
            self.update_part(part, elements, learning_rate)
        self._published = None
        self.committed()

    def measure_next_update(self) -> None:
        """Let `update_norm` be that of the next committed update: one copy now and one pass then, no other costs."""
        self._measured_from, self.update_norm = self.parameters.clone(), None

    def committed(self) -> None:
        """An update is whole and stays: to be called by who steps parts; `apply` does."""
        if self._measured_from is not None:
            self.update_norm = torch.dist(self.parameters, self._measured_from).item()
            self._measured_from = None

    def keep(self) -> None:
        """Be ready to `go_back` to the version that is published now."""
        self.published()
        for name, tensor in self._optimizer.state.items():
            self._kept.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    def go_back(self) -> None:
        """Undo every step of a part since `keep`."""
        self.parameters.copy_(self.published())
        self._optimizer.load(self._kept)

    def publish(self, parameters: Tensor) -> None:
        """`parameters` [n] equal the current ones, and nobody will change them."""
        self._published = parameters

    def published(self) -> Tensor:
        """The current parameters [n] in a buffer of their own that no later update touches."""
        if self._published is None:
            self._published = self.parameters.clone()
        return self._published

    def optimizer_state(self) -> State:
        """A copy of the optimizer's state: moments [n], counters []."""
        return {name: tensor.clone() for name, tensor in self._optimizer.state.items()}

    def moment_norms(self) -> dict[str, float]:
        """L2 norms of the optimizer's moments over this shard, by `first_moment_norm` and `second_moment_norm`.

        Empty for a rule that keeps none. Reads the state once: milliseconds for a million parameters.
        """
        state = self._optimizer.state
        return {MOMENTS[name]: float(torch.linalg.vector_norm(state[name])) for name in state if name in MOMENTS}

    def load(self, parameters: Tensor, state: State | None) -> None:
        """Go back to saved parameters [n] and optimizer state; None: a fresh optimizer.

        Raises:
            CheckpointError: of another length, or another optimizer; nothing is changed then.
        """
        if parameters.numel() != self.numel:
            raise CheckpointError(f"a slice of {parameters.numel()} elements cannot be loaded into {self.numel}")
        if state is None:
            for tensor in self._optimizer.state.values():
                tensor.zero_()
        else:
            try:
                self._optimizer.load(state)
            except ConfigError as error:
                raise CheckpointError(str(error)) from None
        self.parameters.copy_(parameters)
        self._published = None
        if self._measured_from is not None:
            self._measured_from.copy_(parameters)  # going back is no update
