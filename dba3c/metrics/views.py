"""Terminal output of a run: `RichView` on a terminal, `PlainView` elsewhere, both from the same summary."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from dba3c.metrics.summary import RunSummary, dropped_share, event_line


class View(Protocol):
    """Shows a run to a person."""

    def show(self, summary: RunSummary, now_s: float) -> None: ...

    def close(self, summary: RunSummary) -> None: ...


class NoView:
    """Shows nothing."""

    def show(self, summary: RunSummary, now_s: float) -> None:
        del summary, now_s

    def close(self, summary: RunSummary) -> None:
        del summary


class PlainView:
    """One line every `every_s`, and each event on a line of its own: for files, pipes and CI."""

    def __init__(self, every_s: float = 10.0, out: TextIO | None = None, since_s: float = float("-inf")) -> None:
        self._every_s = every_s
        self._out = out or sys.stdout
        self._next_s: float | None = None
        self._last_event_s = since_s

    def show(self, summary: RunSummary, now_s: float) -> None:
        for event in list(summary.events):
            if event["time_s"] > self._last_event_s:
                self._print(event_line(event))
        self._last_event_s = max([self._last_event_s, *(event["time_s"] for event in summary.events)])
        if self._next_s is None:
            self._next_s = now_s + self._every_s / 2  # the first line soon, the others in their rhythm
        elif now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._print(status_line(summary, now_s))

    def close(self, summary: RunSummary) -> None:
        self._print(status_line(summary, summary.newest_s))

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def terminal_view(out: TextIO | None = None, every_s: float = 10.0, since_s: float = float("-inf")) -> View:
    """The live view where `out` (stdout by default) is a terminal, plain lines every `every_s` elsewhere.

    Plain lines leave out events before `since_s`: a resumed launch does not tell its earlier lives again.
    """
    stream = out or sys.stdout
    if not stream.isatty():
        return PlainView(every_s, stream, since_s)
    from rich.console import Console

    from dba3c.metrics.live import RichView

    return RichView(Console(file=stream))


def number(value: float | None, digits: int = 1) -> str:
    """A number for people: 1,234.5; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.{digits}f}"


def duration(hours: float) -> str:
    """Hours as 1:02:03."""
    seconds = int(hours * 3600)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def score_text(summary: RunSummary) -> str:
    """The mean of the last games, and of how many games it is."""
    scores = summary.scores
    goal = f" of {number(summary.facts.stop_score)}" if summary.facts.stop_score is not None else ""
    return f"{number(scores.mean, 2)}{goal} (last {len(scores.window)} games, max {number(scores.max)})"


def status_line(summary: RunSummary, now_s: float) -> str:
    """The state of a run in one line."""
    if not summary.processes:
        return "nothing recorded yet"
    hours, core_hours = summary.hours()
    points_s, frames_s = summary.per_second(now_s, "data_points"), summary.per_second(now_s, "frames")
    dropped = dropped_share({name: summary.total(name) for name in ("accepted", "dropped", "rejected")})
    return (
        f"[{duration(hours)}] step {summary.step:,}  frames {number(summary.frames)}  score {score_text(summary)}  "
        f"{number(points_s, 0)} data points/s  {number(frames_s, 0)} frames/s  "
        f"workers {summary.active_workers(now_s)}  dropped {dropped:.1%}  core-hours {core_hours:.2f}"
    )
