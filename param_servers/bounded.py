"""A bound for calls that have none of their own: of torch's store when its host is stopped, of a disk that hangs."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def within(timeout_s: float, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own; that thread is left behind when it takes too long.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
        What `work` raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="bounded", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return results[0]


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
