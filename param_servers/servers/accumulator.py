"""The gradient slices that one shard holds while a step is open. Pure: no sockets, no clock.

A slice is named by (worker, incarnation, sequence): `sequence` numbers a worker's pushes, the same on every shard, so
a repeated or reordered frame is recognised and counted at most once, and a push that another shard rejected can be
replaced by the worker's next one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from param_servers.errors import ParamServersError
from param_servers.wire.messages import Code, Row

LARGEST = 1e18
"""A larger element counts as not finite, in every mode: sums of such gradients, and their squares in the optimizer's
moments, would overflow (float32 ends at 3.4e38), and the update of finite gradients would not be finite."""
Elements = npt.NDArray[np.float32]
Key = tuple[int, int]
"""(worker, incarnation)"""


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
        """Take a complete slice.

        Returns:
            NONE: held; ACCEPTED: held or decided before (a repetition, nothing to do); STALE: of an older step;
            NON_FINITE (see `is_usable`), WRONG_LENGTH: rejected.
        """
        key = (worker, incarnation)
        held = self._slices.get(key)
        if sequence <= self._decided.get(key, 0) or (held is not None and sequence <= held.sequence):
            return Code.ACCEPTED
        if step > self.step or (step < self.step and not self._keeps_older):
            return Code.STALE
        if gradient.numel() != self.numel:
            return Code.WRONG_LENGTH
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
        """This push has its answer; it will not be taken again."""
        key = (row.worker, row.incarnation)
        self._decided[key] = max(self._decided.get(key, 0), row.sequence)
        self._release([key])

    def forget(self, worker: int, incarnation: int) -> None:
        """Drop what this and earlier incarnations of a worker pushed: the coordinator will not commit it."""
        self._release([key for key in self._slices if key[0] == worker and key[1] <= incarnation])

    @property
    def count(self) -> int:
        """Slices held."""
        return len(self._slices)

    def held(self, worker: int, incarnation: int) -> Slice | None:
        """The slice held of one worker's incarnation."""
        return self._slices.get((worker, incarnation))

    def spare(self) -> Tensor:
        """A buffer [n] to receive a slice into; decided slices give theirs back."""
        return self._spare.pop() if self._spare else torch.empty(self.numel)

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
    if len(gradients) > 1:
        np.divide(out, len(gradients), out=out)


def is_usable(tensor: Tensor) -> bool:
    """Whether a gradient [n] may enter an update: every element is finite and at most `LARGEST`.

    The squares of all elements together bound each of them, in one pass without temporaries; only where they add up
    to more is a closer look taken.
    """
    return torch.dot(tensor, tensor).item() <= LARGEST**2 or bool((tensor.abs() <= LARGEST).all())
