"""What config.json and meta.json say of a run that its records do not: what it is to reach, and its lives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dba3c.errors import UserError
from dba3c.runs.ending import TRAINING_ROLES
from dba3c.runs.folder import RunFolder


@dataclass(frozen=True)
class Life:
    """One launch of a run: when it began (unix seconds) and the cores that it held."""

    started_s: float
    cores: float
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many processes there are of each role that plays, learns or serves; {} where that is not known."""
    is_over: bool = False
    ended_s: float = math.inf


@dataclass(frozen=True)
class RunFacts:
    """Read once; a resumed run has a new life, so viewers read it again now and then."""

    name: str
    stop_score: float | None = None
    stop_games: int = 50
    total_frames: float | None = None
    lives: tuple[Life, ...] = ()

    @classmethod
    def of(cls, run: RunFolder) -> RunFacts:
        """The facts of a run folder. Raises UserError when its config.json or meta.json is broken."""
        config, meta = run.config(), run.meta()
        for name in ("run", "environment"):
            if not isinstance(config.get(name, {}), dict):
                raise UserError(f"{run.path / 'config.json'}: {name} should be an object")
        limits = config.get("run", {})
        return cls(
            name=run.path.name,
            stop_score=stop_score(config),
            stop_games=max(1, int(_number(limits.get("stop_games")) or 50)),
            total_frames=_number(limits.get("total_frames")),
            lives=_lives(meta.get("lives", [])),
        )

    def hours(self, last_seen_s: Sequence[float]) -> tuple[float, float]:
        """(hours, core-hours held) that the run has taken; `last_seen_s[i]`: time of the newest record of life i."""
        hours = core_hours_held = before_s = 0.0
        for life, seen_s in zip(self.lives, last_seen_s, strict=False):
            began_s = max(life.started_s, before_s)  # records of a clock that was set back go on from there
            ended_s = min(seen_s, life.ended_s) if life.ended_s >= began_s else seen_s
            spent, before_s = max(0.0, ended_s - began_s) / 3600.0, max(before_s, seen_s)
            hours += spent
            core_hours_held += spent * life.cores
        return hours, core_hours_held

    def life_at(self, time_s: float) -> int:
        """Index of the newest life that had begun by `time_s`; 0 when there is none noted."""
        return max((index for index, life in enumerate(self.lives) if life.started_s <= time_s), default=0)


def stop_score(config: Mapping[str, Any]) -> float | None:
    """The mean score that a configuration asks for, None where it asks for none."""
    return _number(config.get("run", {}).get("stop_score"))


def reached_line(mean: float, games: int, goal: float) -> str:
    """Why the stop rule ended a run, as `goal_reached` reads it."""
    return f"mean score {mean:.10g} of the last {games} games reached {goal:g}"


def goal_reached(reason: str) -> float | None:
    """The goal of a `reached_line`; None of any other reason."""
    said = re.fullmatch(r"mean score \S+ of the last \d+ games reached (\S+)", reason)
    return None if said is None else float(said[1])


def _lives(listed: Sequence[Mapping[str, Any]]) -> tuple[Life, ...]:
    lives = []
    for entry in listed:
        started_s = _number(entry.get("started_s"))
        if started_s is not None:
            ended_s = _number(entry.get("ended", {}).get("time_s"))
            cores, counts = _number(entry.get("cores")) or 1.0, _counts(entry.get("topology"))
            lives.append(Life(started_s, cores, counts, "ended" in entry, math.inf if ended_s is None else ended_s))
    return tuple(lives)


def _counts(topology: object) -> dict[str, int]:
    named = {role: topology.get(f"{role}s") for role in TRAINING_ROLES} if isinstance(topology, dict) else {}
    return {role: count for role, count in named.items() if isinstance(count, int) and count > 0}


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e300:
        return None
    return float(value)
