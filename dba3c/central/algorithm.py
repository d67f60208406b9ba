"""What central inference asks of an algorithm beside its policy: a trainer that makes gradients of complete unrolls.

A trainer takes experience, and then owes some number of gradients for it. One with a replay keeps neither that nor its
target network for a later life: the replay begins empty, the target as a copy of the parameters.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from dba3c.central.unrolls import GroupUnroll
from param_servers.exchange import Pull


class Update(NamedTuple):
    """One gradient."""

    gradient: Tensor
    """[P] float32, in a buffer that the next one reuses."""
    data_points: int
    """Transitions that enter an update for the first time, should it be accepted."""
    numbers: dict[str, float]
    """Metrics by their names in the registry."""


class Trainer(ABC):
    """What the learner asks of an algorithm."""

    groups_per_batch: int = 1
    """Group unrolls that it takes at a time."""
    memory_bytes: int = 0
    """What a replay takes once it is full."""
    least_steps: int = 0
    """Agent steps that it keeps even where fewer are asked for."""

    @property
    @abstractmethod
    def owes(self) -> bool:
        """Whether there is a gradient to compute before more experience is taken."""

    @abstractmethod
    def take(self, unrolls: list[GroupUnroll]) -> None:
        """New experience."""

    @abstractmethod
    def update(self, pulled: Pull) -> Update:
        """A gradient at the pulled parameters, which the trainer's network holds already."""

    def answered(self, accepted: bool) -> None:
        """Whether the newest gradient entered an update; of one that was dropped, no transition is a data point."""
        return


class ReplayDebt:
    """Counts agent steps gathered against steps sampled.

    Args:
        start: steps to gather before the first gradient; they are owed nothing.
        ratio: steps to sample for each step gathered after that.
        per_update: steps that one gradient samples.
    """

    def __init__(self, start: int, ratio: float, per_update: int) -> None:
        self._start, self._ratio, self._per_update = start, ratio, per_update
        self._gathered = self._sampled = 0

    @property
    def owes(self) -> bool:
        """Whether a gradient is due."""
        past_start = self._gathered - self._start
        return past_start >= 0 and self._sampled < max(1, past_start) * self._ratio

    def gathered(self, steps: int) -> None:
        """Steps that train were added to the replay."""
        self._gathered += steps

    def forgive(self) -> None:
        """What was gathered until now is owed nothing."""
        self._start, self._sampled = max(self._start, self._gathered), 0

    def paid(self) -> None:
        """One gradient was computed."""
        self._sampled += self._per_update
