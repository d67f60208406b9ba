"""In which phase of its end a supervised run is, until when, and which signals are news."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

RUNNING, ENDING, STOPPING, TERMINATING, KILLING = range(5)
SAME_REQUEST_S = 1.0
"""Launchers repeat themselves: scancel tells srun and the tasks, which srun tells again. Only Ctrl-C counts at once."""


class Phases:
    """The phase, its deadline, and the last request. Every phase but RUNNING has a deadline."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = RUNNING
        self.last_signal = signal.SIGTERM
        self._clock = clock
        self._deadline_s: float | None = None
        self._signalled_s = float("-inf")

    def enter(self, phase: int, timeout_s: float) -> None:
        """Go over to a phase that may last ``timeout_s``."""
        self.now = phase
        self._deadline_s = self._clock() + timeout_s

    def remaining_s(self) -> float | None:
        """Time left in this phase; None without a bound."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._clock())

    def is_repeated(self, signum: signal.Signals) -> bool:
        """Note a signal; whether it only repeats the one before."""
        at_once = self._clock() - self._signalled_s < SAME_REQUEST_S
        repeated = at_once and not signum == self.last_signal == signal.SIGINT
        self._signalled_s = self._clock()
        if not repeated:
            self.last_signal = signum
        return repeated
