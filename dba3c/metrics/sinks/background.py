"""A sink in a thread of its own, behind a bounded queue: slow or broken, it holds nobody up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from dba3c.metrics.sinks.protocol import Sink, TrackedRun

QUEUE_LENGTH = 256
RETRY_OPEN_S = 60.0
CLOSE_TIMEOUT_S = 30.0

_Call = Callable[[], None]


class BackgroundSink:
    """Drives one sink. Points that do not fit, or that the sink refuses, are counted; its first failure is warned of.

    A sink that cannot be opened is tried again every `retry_open_s`: its server may only be late.
    """

    def __init__(
        self,
        sink: Sink,
        run: TrackedRun,
        warn: Callable[[str], None],
        queue_length: int = QUEUE_LENGTH,
        retry_open_s: float = RETRY_OPEN_S,
    ) -> None:
        self.sink = sink
        self.delivered = 0
        self.dropped = 0  # the queue was full
        self.failed = 0  # the sink raised
        self._run = run
        self._warn = warn
        self._warned = False
        self._is_open = False
        self._retry_open_s = retry_open_s
        self._next_open_s = 0.0
        self._calls: queue.Queue[_Call | None] = queue.Queue(queue_length)
        self._thread = threading.Thread(target=self._work, name=f"sink-{sink.name}", daemon=True)
        self._thread.start()

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Hands over one point, or counts it as dropped; returns at once."""
        self._offer(lambda: self.sink.point(values, step, time_s))

    def event(self, message: str, step: int, time_s: float) -> None:
        """Hands over one event, or counts it as dropped; returns at once."""
        self._offer(lambda: self.sink.event(message, step, time_s))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Lets the sink finish for at most `timeout_s`; says in one line what it did not get. True: it got all."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self._calls.put(None, timeout=timeout_s)
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        except queue.Full:
            pass  # said below
        left = self._calls.qsize()
        if self._thread.is_alive():
            self._warn(f"{self.sink.name} did not finish within {timeout_s:.0f} s; {left} points are left behind")
        if self.dropped or self.failed:
            self._warn(f"{self.sink.name} missed {self.dropped + self.failed} points; export them with `dba3c export`")
        return not (self._thread.is_alive() or self.dropped or self.failed)

    def _offer(self, call: _Call) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self.dropped += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._opened() and self._attempt(call):
                self.delivered += 1
            else:
                self.failed += 1
        if self._is_open and not self._attempt(self.sink.close):
            self.failed += 1

    def _opened(self) -> bool:
        if not self._is_open and time.monotonic() >= self._next_open_s:
            self._is_open = self._attempt(lambda: self.sink.open(self._run))
            self._next_open_s = time.monotonic() + self._retry_open_s
        return self._is_open

    def _attempt(self, call: _Call) -> bool:
        try:
            call()
        except Exception as error:
            if not self._warned:
                self._warned = True
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
                self._warn(f"{self.sink.name} fails ({reason}); the run and its other trackers go on")
            return False
        return True
