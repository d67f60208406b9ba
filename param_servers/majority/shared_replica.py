"""What the main thread and the comm thread of a rank in a majority all-reduce share, under one lock: the replica, the
push that waits for its answer, and how the run ended."""

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from param_servers.errors import ParamServersError, PeerLost, RunStopped
from param_servers.exchange import Pull, Receipt
from param_servers.layout import floats
from param_servers.replica import Replica, refusal
from param_servers.wire.messages import Row

LOOKS = 4
"""In one patience: time in which the whole process was stopped costs one of them."""
Outcome = ParamServersError | RunStopped
"""How a run ended."""


class WaitingPush(NamedTuple):
    """A gradient that waits for its answer."""

    row: Row
    """Names the push; `mark` is not used."""
    step: int
    """It was computed on the parameters of this step."""
    data_points: int


class SharedReplica:
    """The replica of rank `rank`.

    Args:
        rank, incarnation: whose pushes these are.
        replica: from now on changed through this only.
        patience_s: longest wait of the main thread for a sign of life of the comm thread. Of the others it is the chief
            who decides, and who says who is missing.
    """

    def __init__(self, rank: int, incarnation: int, replica: Replica, patience_s: float) -> None:
        self._rank, self._incarnation, self._replica, self._patience_s = rank, incarnation, replica, patience_s
        self.turns = 0
        """The comm thread's, by which the main thread sees that it lives."""
        self._gradient = floats(replica.layout.numel)
        self._changed = threading.Condition()
        """Guards all below, and the replica."""
        self._waiting: WaitingPush | None = None
        self._summed_step = -1
        """The step whose sum the waiting push went into; -1: none."""
        self._accepted = False
        """The answer on the push that waited last. Kept, for more steps may end before the main thread reads it."""
        self._sequence = 0
        self._formed = False
        self._summing = False
        """A step is decided but not taken: what is computed on its parameters from now on would be stale."""
        self.ended: Outcome | None = None
        """How the run ended for this rank; None while it goes on."""

    # -- main thread ---------------------------------------------------------------------------------------------

    def pull(self) -> Pull:
        """The newest parameters, when there is a first group. Who comes while a step is summed waits for its end: on
        the parameters before it nothing can be computed any more that counts. Raises how the run ended, or PeerLost."""
        with self._changed:
            self._raise_if_ended()
            self._wait_for(lambda: self._formed, "the ranks to form a group")
            step = self._replica.step
            self._wait_for(lambda: not self._summing or self._replica.step > step, f"the sum of step {step}")
            return self._replica.pull()

    def offer(self, gradient: Tensor, step: int, data_points: int) -> Receipt | None:
        """Let a gradient [P] of `step` wait for its answer; one that may not has it at once. Raises as `answer`."""
        with self._changed:
            self._raise_if_ended()
            self._sequence += 1  # of all pushes, as with servers: who replays the audit counts them, too
            reason = refusal(gradient, step, self._replica)
            if reason:
                return Receipt(False, self._replica.step, reason)
            self._gradient.copy_(gradient.detach())  # not into its graph
            self._waiting = WaitingPush(Row(self._rank, self._incarnation, self._sequence), step, data_points)
            return None

    def answer(self, step: int) -> Receipt:
        """Wait for the answer to the gradient of `step` that was offered. Raises how the run ended, or PeerLost."""
        with self._changed:
            self._wait_for(lambda: self._waiting is None, f"step {step} to end")
            return Receipt(self._accepted, self._replica.step, "" if self._accepted else "stale")

    def _raise_if_ended(self) -> None:
        if self.ended is not None:
            raise self.ended

    def _wait_for(self, true: Callable[[], bool], what: str) -> None:
        looks, turns = 0, -1
        while not self._changed.wait_for(lambda: true() or self.ended is not None, self._patience_s / LOOKS):
            looks, turns = looks + 1 if turns == self.turns else 0, self.turns
            if looks == LOOKS:
                raise PeerLost(f"rank {self._rank} waited {self._patience_s:g} s in vain for {what}")
        if not true():
            self._raise_if_ended()

    # -- comm thread ---------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> WaitingPush | None:
        """The push that waits for its answer."""
        with self._changed:
            return self._waiting

    def contribute(self, step: int, members: Iterable[Row], out: Tensor) -> None:
        """Write into `out` [P] what this rank adds to the sum of `step`: its gradient as a member, else zeros."""
        with self._changed:
            self._summing = True
            if self._waiting is not None and self._waiting.row in [row._replace(mark=0) for row in members]:
                out.copy_(self._gradient)
                self._summed_step = step
            else:
                out.zero_()
                self._summed_step = -1

    def commit(self, mean: Tensor, data_points: int) -> None:
        """One update with the mean gradient [P]; `data_points` in the run, with it."""
        with self._changed:
            self._replica.commit(mean, data_points - self._replica.data_points)
            self._settle()

    def give_up_sum(self) -> None:
        """The sum of `contribute` broke; the replica stays as it is."""
        with self._changed:
            self._summing = False
            self._changed.notify_all()

    def go_on_from(self, state: tuple[Tensor, Tensor] | None) -> None:
        """A group is formed; take over this state of another rank (`Replica.counters`, `packed`), or
        keep the own (None)."""
        with self._changed:
            if state is not None:
                self._replica.unpack(*state)
            self._formed = True
            self._settle()

    def _settle(self) -> None:
        """The replica has moved on: whoever waits for an older step has its answer."""
        self._summing = False
        if self._waiting is not None and self._waiting.step < self._replica.step:
            self._accepted = self._summed_step == self._waiting.step
            self._waiting = None
        self._changed.notify_all()

    def end(self, outcome: Outcome) -> None:
        """The run is over for this rank; the first outcome counts."""
        with self._changed:
            self.ended = self.ended or outcome
            self._changed.notify_all()
