"""A clock for processes that may be stopped (SIGSTOP, a suspended machine) and go on later as if nothing had been."""

import math
import time
from collections.abc import Callable


class AwakeClock:
    """Time that hardly passes while this process is stopped: nobody is late for what it was not there to hear.

    Args:
        longest_s: longest time between two readings of a process that runs; when more has passed, it was stopped.
        clock: a monotonic one.
    """

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s, self._clock = longest_s, clock
        self._read_s = clock()
        self._all_slept_s = 0.0
        self.slept_s, self.woke_s = 0.0, -math.inf
        """How long the process was stopped the last time, and when on this clock it went on."""

    def now_s(self) -> float:
        """Seconds on this clock; to be read again and again."""
        read_s = self._clock()
        gap_s, self._read_s = read_s - self._read_s, read_s
        stopped = gap_s > self._longest_s
        if stopped:
            self._all_slept_s += gap_s - self._longest_s / 8  # even a process that never runs in time gets on
        now_s = read_s - self._all_slept_s
        if stopped:
            self.slept_s, self.woke_s = gap_s, now_s
        return now_s
