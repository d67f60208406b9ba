"""What a tracker's adapter must do, what it is told about the run, and the thread that drives it."""

from __future__ import annotations

import hashlib
import importlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from dba3c.errors import UserError
from dba3c.metrics.run_facts import flat_names
from dba3c.runs.folder import RunFolder

QUEUE_LENGTH = 256
RETRY_OPEN_S = 60.0
CLOSE_TIMEOUT_S = 30.0

_Call = Callable[[], None]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told about a run. `identity` is the same for all lives of a run, so that they are one there."""

    name: str
    identity: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    tags: tuple[str, ...]
    folder: Path  # where the tracker's own files go
    resumed: bool = False

    @classmethod
    def of(cls, run: RunFolder) -> TrackedRun:
        """What a run's folder says."""
        config, lives = run.config(), run.meta().get("lives") or [{}]
        first = lives[0]
        born = f"{first.get('started_s')} {first.get('host', {}).get('name')} {run.path.name}"
        life = lives[-1]
        facts = {
            key: life[key] for key in ("launcher", "topology", "cores", "host", "versions", "source") if key in life
        }
        environment = str((config.get("environment") or {}).get("env_id", ""))
        tags = tuple(tag for tag in ("dba3c", environment) if tag)
        identity = hashlib.sha256(born.encode()).hexdigest()[:12]
        return cls(run.path.name, identity, config, facts, tags, run.path, resumed=len(lives) > 1)

    def parameters(self) -> dict[str, str | int | float | bool]:
        """Config and facts as flat names, e.g. "optimizer/learning_rate", for trackers that know no trees."""
        return {**dict(flat_names(self.config)), **dict(flat_names(self.facts, "facts/"))}


class Sink(Protocol):
    """One tracker. Called from one thread; may raise anything, which costs its own points and nobody else's."""

    name: str

    def open(self, run: TrackedRun) -> None:
        """Connects. Raises UserError when the client is not installed."""
        ...

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Chart (`dba3c.metrics.registry.tracker_name`) to value, at one committed step and unix time."""
        ...

    def event(self, message: str, step: int, time_s: float) -> None:
        """One line about something that happened."""
        ...

    def film(self, path: Path, step: int, time_s: float) -> None:
        """A game of the checkpoint of a step, as a GIF."""
        ...

    def close(self) -> None:
        """Everything that was given is where it belongs when this returns."""
        ...


def client(package: str, extra: str) -> ModuleType:
    """Imports a tracker's client, or says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"tracking with {extra} needs its client: pip install 'dba3c[{extra}]' ({error})") from error


class BackgroundSink:
    """Drives one sink from a thread of its own, behind a bounded queue: slow or broken, it holds nobody up.

    Points that do not fit, or that the sink refuses, are counted; its first failure is warned of.

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

    def film(self, path: Path, step: int, time_s: float) -> None:
        """Hands over one film, or counts it as dropped; returns at once."""
        self._offer(lambda: self.sink.film(path, step, time_s))

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
            if not (self._opened() and self._attempt(call)):
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
