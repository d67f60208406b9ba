"""When to try again to reach a server: bounded in time, growing apart, and jittered so that 64 workers do not knock at
once."""

import random


class Redial:
    """Patience for one peer. Times are seconds on the caller's clock.

    Args:
        timeout_s: after this long without success it is given up.
        seed: of the jitter.
    """

    FIRST_S, LONGEST_S = 0.05, 2.0

    def __init__(self, timeout_s: float, seed: int) -> None:
        self.timeout_s = timeout_s
        self.last_reason = "no address known"
        self._random = random.Random(seed)
        self._since_s: float | None = None
        self._next_s = 0.0
        self._wait_s = self.FIRST_S

    def succeeded(self) -> None:
        """Connected: patience starts anew."""
        self._since_s = None
        self._wait_s = self.FIRST_S

    def failed(self, reason: str, now_s: float) -> None:
        """The link broke, or an attempt did not succeed."""
        self.last_reason = reason
        if self._since_s is None:
            self._since_s = now_s
        self._next_s = now_s + self._wait_s * self._random.uniform(0.5, 1.0)
        self._wait_s = min(self.LONGEST_S, self._wait_s * 2)

    def due(self, now_s: float) -> bool:
        """Whether to try now."""
        if self._since_s is None:
            self._since_s = now_s
        return now_s >= self._next_s

    def expired(self, now_s: float) -> bool:
        """Whether to give up."""
        return self._since_s is not None and now_s - self._since_s > self.timeout_s
