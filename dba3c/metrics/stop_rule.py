"""The limits that only the records show: the stop score and processor time (`dba3c.runs.ending` has the others)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dba3c.metrics.reader import Record
from dba3c.metrics.summary import RunSummary, Scores


@dataclass(frozen=True)
class StopRule:
    """The limits of a run, any of which ends it; None is no limit."""

    stop_score: float | None = None
    """Mean score of the last `stop_games` finished games to reach."""
    stop_games: int = 50
    max_core_hours: float | None = None
    """Processor time of all processes, over all lives."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StopRule:
        """The limits in a run's config.json (its "run" section)."""
        limits = config.get("run") or {}
        games = limits.get("stop_games") or 50
        names = ("stop_score", "max_core_hours")
        return cls(stop_games=games, **{name: limits.get(name) for name in names})


class StopWatch:
    """Applies a rule to one life of a run.

    Only games that ended in this life count: those before a crash may have been played by parameters that were lost
    with it, and a run that is resumed was asked to go on.
    """

    def __init__(self, rule: StopRule, since_s: float) -> None:
        self.rule = rule
        self._since_s = since_s
        self._scores = Scores(rule.stop_games)

    def add(self, record: Record) -> None:
        """One record, whatever its kind or life."""
        if record["kind"] == "episode" and record.get("score") is not None and record["time_s"] >= self._since_s:
            self._scores.add(record["score"])

    def reason(self, summary: RunSummary) -> str | None:
        """One line that says why the run should end now, None while it should go on."""
        rule, mean = self.rule, self._scores.mean
        if rule.stop_score is not None and self._scores.full and mean is not None and mean >= rule.stop_score:
            return f"mean score {mean:.1f} of the last {rule.stop_games} games reached {rule.stop_score:g}"
        if rule.max_core_hours is not None and summary.cpu_hours >= rule.max_core_hours:
            return f"{summary.cpu_hours:.2f} core-hours were used, {rule.max_core_hours:g} were allowed"
        return None
