"""Nothing is waited for or tried without end: when and how often again, on which clock, and how to leave it behind.

How long everybody waits for whom is a table of its own, `timeouts`.
"""

import math
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Redial:
    """When to try again to reach a peer: bounded in time, growing apart, and jittered so that 64 do not knock at once.

    Times are seconds on the caller's clock.

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


class Restarts:
    """How often something that fails may be begun again: at most `most` times within `window_s`. A rate, so that
    neither a run of weeks uses it up nor something that always fails goes on for ever.
    """

    def __init__(self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.window_s = most, window_s
        self.total = 0
        self._clock = clock
        self._times_s: deque[float] = deque()

    @property
    def recent(self) -> int:
        """Of the last `window_s`."""
        while self._times_s and self._clock() - self._times_s[0] >= self.window_s:
            self._times_s.popleft()
        return len(self._times_s)

    def take(self) -> bool:
        """Count one more; False, and not counted, when it would be one too many."""
        if self.recent >= self.most:
            return False
        self._times_s.append(self._clock())
        self.total += 1
        return True

    def __str__(self) -> str:
        """`2 of 5 within 1 h`."""
        return f"{self.recent} of {self.most} within {self.window_s / 3600:g} h"


class AwakeClock:
    """Time that hardly passes while this process is stopped (SIGSTOP, a suspended machine): nobody is late for what it
    was not there to hear.

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


class LeavableThread:
    """Does one piece of work after the other in a thread of its own, which can be left behind when it hangs.

    A ThreadPoolExecutor's cannot: the interpreter waits for its threads before it ends, for ever if need be.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin `work` when all before is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def close(self, timeout_s: float) -> None:
        """Let it do what was begun, and wait for that at most so long."""
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._work.get()) is not None:
            future, work = entry
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


def within(timeout_s: float, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own; that thread is left behind when it takes too long.

    For calls that have no bound of their own, as torch's store when its host is stopped.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
        What `work` raises.
    """
    thread = LeavableThread("within")
    future = thread.submit(work)
    thread.close(0.0)
    if not wait([future], timeout_s).done:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return future.result()
