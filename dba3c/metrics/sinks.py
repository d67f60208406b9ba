"""What a tracker's adapter must do, what it is told about the run, and the thread that drives it."""

from __future__ import annotations

import hashlib
import importlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from dba3c.errors import UserError
from dba3c.metrics.charts import Event, Point
from dba3c.metrics.registry import tracker_name
from dba3c.runs.files import printable
from dba3c.runs.folder import RunFolder
from param_servers.errors import first_line

QUEUE_LENGTH = 256
RETRY_OPEN_S = 60.0
CLOSE_TIMEOUT_S = 30.0


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
    exported: bool = False

    def said_by(self, variable: str, otherwise: str) -> str:
        """What this variable says, which is of a live run; `otherwise` where it says nothing, and in an export."""
        return otherwise if self.exported else os.environ.get(variable, otherwise)

    @classmethod
    def of(cls, run: RunFolder) -> TrackedRun:
        """What a run's folder says. Raises UserError when its config.json or meta.json is broken."""
        config, lives = run.config(), run.meta().get("lives") or [{}]
        first = lives[0]
        environment, host = config.get("environment", {}), first.get("host", {})
        for file, name, value in (("config", "environment", environment), ("meta", "host", host)):
            if not isinstance(value, dict):
                raise UserError(f"{run.path / f'{file}.json'}: {name} should be an object")
        born = f"{first.get('started_s')} {host.get('name')} {run.path.name}"
        life = lives[-1]
        facts = {
            key: life[key] for key in ("launcher", "topology", "cores", "host", "versions", "source") if key in life
        }
        tags = tuple(tag for tag in ("dba3c", str(environment.get("env_id", ""))) if tag)
        identity = hashlib.sha256(os.fsencode(born)).hexdigest()[:12]
        return cls(run.path.name, identity, config, facts, tags, run.path, resumed=len(lives) > 1)

    def parameters(self) -> dict[str, str | int | float | bool]:
        """Config and facts as flat names, e.g. "optimizer/learning_rate", for trackers that know no trees."""
        return {**dict(flat_names(self.config)), **dict(flat_names(self.facts, "facts/"))}


def flat_names(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """(name, value) of each option in a tree, e.g. "optimizer/learning_rate"; what is no plain value is text."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_names(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value if isinstance(value, (int, float, bool)) else printable(str(value))


class Sink(Protocol):
    """One tracker. Called from one thread; may raise anything, which costs its own points and nobody else's."""

    name: str

    def open(self, run: TrackedRun) -> None:
        """Connects. Raises UserError when the client is not installed."""

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Chart (`dba3c.metrics.registry.tracker_name`) to value, at one committed step and unix time."""

    def event(self, message: str, step: int, time_s: float) -> None:
        """One line about something that happened."""

    def film(self, path: Path, step: int, time_s: float) -> None:
        """A game of the checkpoint of a step, as a GIF."""

    def close(self) -> None:
        """Everything that was given is where it belongs when this returns."""


def client(package: str, extra: str) -> ModuleType:
    """Imports a tracker's client, or says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"tracking with {extra} needs its client: pip install 'dba3c[{extra}]' ({error})") from error


def give(sink: Sink, happened: Point | Event, folder: Path) -> None:
    """Hands one thing that happened to a sink; `folder`: the run's, in which films are."""
    if isinstance(happened, Point):
        values = {tracker_name(chart): value for chart, value in happened.values.items()}
        sink.point(values, happened.step, happened.time_s)
        return
    sink.event(happened.message, happened.step, happened.time_s)
    film = folder / happened.film
    if happened.film and film.is_file():
        sink.film(film, happened.step, happened.time_s)


class BackgroundSink:
    """Drives one sink from a thread of its own, behind a bounded queue: slow or broken, it holds nobody up.

    Points and events that do not fit, or that the sink refuses, are counted; its first failure is warned of. A sink
    that cannot be opened is tried again every RETRY_OPEN_S: its server may only be late.
    """

    def __init__(self, sink: Sink, run: TrackedRun, warn: Callable[[str], None]) -> None:
        self.sink = sink
        self.dropped = 0  # the queue was full
        self.failed = 0  # the sink raised
        self._run = run
        self._warn = warn
        self._warned = False
        self._is_open = False
        self._next_open_s = 0.0
        self._waiting: queue.Queue[Point | Event | None] = queue.Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name=f"sink-{sink.name}", daemon=True)
        self._thread.start()

    def give(self, happened: Point | Event) -> None:
        """Hands it over, or counts it as dropped; returns at once."""
        try:
            self._waiting.put_nowait(happened)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Lets the sink finish for at most `timeout_s`; says in one line what it did not get."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self._waiting.put(None, timeout=timeout_s)
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        except queue.Full:
            pass  # said below
        if self._thread.is_alive():
            with self._waiting.mutex:  # events and the mark of the end wait there too
                left = sum(isinstance(happened, Point) for happened in self._waiting.queue)
            self._warn(f"{self.sink.name} did not finish within {timeout_s:.0f} s; {left} points are left behind")
        if self.dropped or self.failed:
            self._warn(
                f"{self.sink.name} missed {self.dropped + self.failed} points or events: `dba3c export` gives it all"
            )

    def _work(self) -> None:
        while (happened := self._waiting.get()) is not None:
            if not (self._opened() and self._attempt(give, self.sink, happened, self._run.folder)):
                self.failed += 1
        if self._is_open and not self._attempt(self.sink.close):
            self.failed += 1

    def _opened(self) -> bool:
        if not self._is_open and time.monotonic() >= self._next_open_s:
            self._is_open = self._attempt(self.sink.open, self._run)
            self._next_open_s = time.monotonic() + RETRY_OPEN_S
        return self._is_open

    def _attempt(self, call: Callable[..., None], *arguments: object) -> bool:
        try:
            call(*arguments)
        except Exception as error:
            if not self._warned:
                self._warned = True
                self._warn(f"{self.sink.name} fails ({first_line(error)}); the run and its other trackers go on")
            return False
        return True
