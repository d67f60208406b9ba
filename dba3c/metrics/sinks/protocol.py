"""What a tracker's adapter must do, and what it is told about the run."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from dba3c.errors import UserError
from dba3c.metrics.flat_names import flat_names
from dba3c.runs.run_folder import RunFolder


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
        """Chart name to value, at one committed step and unix time."""
        ...

    def event(self, message: str, step: int, time_s: float) -> None:
        """One line about something that happened."""
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
