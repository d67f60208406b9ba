"""What a person sees of a run: score, speed, where each process's time goes, whose gradients are dropped.

`RichView` on a terminal, `NotebookView` below a notebook's cell, `PlainView` elsewhere, all from the same summary.
"""

import html
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from dba3c.metrics.reader import Record
from dba3c.metrics.registry import SECTIONS
from dba3c.metrics.summary import HEARD_OF_S, ProcessState, RunSummary, dropped_share, event_line, waited_for

_COLOURS = {
    "environment": "blue",
    "inference": "cyan",
    "serving": "bright_blue",
    "learning": "green",
    "waiting": "yellow",
    "pushing": "magenta",
    "aggregating": "cyan",
    "applying": "green",
    "other": "white",
}
_BAR_WIDTH = 20
_WIDTH_WITH_BAR = 120
"""Narrower terminals are left without the bar, whose largest parts stand in words beside it."""
_ROWS = 20


class View(ABC):
    """Shows a run to a person."""

    @abstractmethod
    def show(self, summary: RunSummary, now_s: float) -> None:
        """The run as it is; `now_s` decides what counts as silent, so a finished run is shown as it ended."""

    def close(self, summary: RunSummary) -> None:  # noqa: B027 (most have nothing to do)
        """What was shown last stays."""


class PlainView(View):
    """One line every `every_s`, and each event or evaluation on a line of its own: for files, pipes and CI."""

    def __init__(self, every_s: float = 10.0, out: TextIO | None = None, since_s: float = float("-inf")) -> None:
        self._every_s = every_s
        self._out = out or sys.stdout
        self._next_s: float | None = None
        self._since_s = since_s
        self._told_in_all = 0
        """Events and evaluations so far: not by their times, for one whose clock is behind comes after the others."""
        self._told: tuple[float, ...] = ()

    def show(self, summary: RunSummary, now_s: float) -> None:
        for place, record in enumerate(summary.told, start=summary.told_in_all - len(summary.told)):
            if place >= self._told_in_all and record["time_s"] > self._since_s:
                self._print(told_line(record))
        self._told_in_all = summary.told_in_all
        pace_s = time.monotonic()  # not now_s: the clock may be set back by an hour
        if self._next_s is None:
            self._next_s = pace_s + self._every_s / 2  # the first line soon, the others in their rhythm
        elif pace_s >= self._next_s:
            self._next_s = pace_s + self._every_s
            self._tell(summary, now_s)

    def close(self, summary: RunSummary) -> None:
        if self._told != _state(summary):
            self._tell(summary, summary.newest_s)

    def _tell(self, summary: RunSummary, now_s: float) -> None:
        self._told = _state(summary)
        self._print(status_line(summary, now_s))

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def _state(summary: RunSummary) -> tuple[float, ...]:
    """What a line of it would say beside rates."""
    return (summary.step, summary.frames, summary.scores.count, len(summary.processes))


def told_line(record: Record) -> str:
    """An event or an evaluation as one line."""
    if record["kind"] == "event":
        return event_line(record)
    return f"evaluation of step {number(record.get('checkpoint_step'))}: {evaluation_text(record)}"


def evaluation_text(record: Record) -> str:
    """An evaluation's figures: mean 12.5, IQM 12 [9 to 14] of 50 full games."""
    low, high = record.get("interval_95") or (None, None)
    around = f" [{number(low, 2)} to {number(high, 2)}]" if low is not None else ""
    left = f"; {record['unfinished']} had not ended, which favours short games" if record.get("unfinished") else ""
    figures = f"mean {number(record.get('mean'), 2)}, IQM {number(record.get('iqm'), 2)}{around}"
    return f"{figures} of {record.get('games')} full games{left}"


def terminal_view(out: TextIO | None = None, since_s: float = float("-inf")) -> View:
    """The live view where `out` (stdout by default) is a terminal, a bar in a notebook, else lines every 10 s.

    Plain lines leave out events before `since_s`: a resumed launch does not tell its earlier lives again.
    """
    if out is None and Console().is_jupyter:
        return NotebookView()
    stream = out or sys.stdout
    console = Console(file=stream)
    if not stream.isatty() or console.is_dumb_terminal:  # which nothing can be redrawn on
        return PlainView(out=stream, since_s=since_s)
    return RichView(console)


def number(value: float | None, digits: int = 1) -> str:
    """A number for people: 1,234.5; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.{digits}f}"


def duration(hours: float) -> str:
    """Hours as 1:02:03."""
    seconds = int(hours * 3600)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def core_hours(hours: float) -> str:
    """Core-hours for people: 12.34; of a run of seconds 0.0012."""
    return f"{hours:.2f}" if hours >= 0.1 else f"{round(hours, 4):g}"


def score_text(summary: RunSummary) -> str:
    """The mean of the last games, and of how many games it is."""
    scores = summary.scores
    goal = f" of {number(summary.facts.stop_score, 2)}" if summary.facts.stop_score is not None else ""
    return f"{number(scores.mean, 2)}{goal} (last {len(scores.window)} games, max {number(scores.max, 2)})"


def status_line(summary: RunSummary, now_s: float) -> str:
    """The state of a run in one line."""
    if waiting := waited_for(summary):
        since_s = now_s - summary.facts.lives[-1].started_s  # less than nothing before the life's first record
        after = f", {duration(since_s / 3600)} after the launch" if since_s >= 0 else ""
        return f"[{duration(summary.hours()[0])}] {waiting}{after}"
    if not summary.processes:
        return "nothing recorded yet"
    points_s, frames_s = summary.per_second(now_s, "data_points"), summary.per_second(now_s, "frames")
    dropped = dropped_share({name: summary.total(name) for name in ("accepted", "dropped", "rejected")}) or 0.0
    return (
        f"[{duration(summary.hours()[0])}] step {summary.step:,}  frames {number(summary.frames)}  "
        f"score {score_text(summary)}  {number(points_s, 0)} data points/s  {number(frames_s, 0)} frames/s  "
        f"workers {summary.active_workers(now_s)}  dropped {dropped:.1%}  cores {cores_text(summary, now_s)}  "
        f"core-hours {core_hours(summary.cpu_hours)}"
    )


def cores_text(summary: RunSummary, now_s: float) -> str:
    """Cores used of those that the run was given: 11.2 of 12."""
    given = summary.facts.lives[-1].cores if summary.facts.lives else None
    return number(summary.per_second(now_s, "cpu_s")) + (f" of {given:g}" if given else "")


class RichView(View):
    """Redraws the run in place."""

    def __init__(self, console: Console) -> None:
        on_a_terminal = sys.stderr is not None and sys.stderr.isatty()
        # else what is said there, to a file, would be drawn here
        self._live = Live(console=console, auto_refresh=False, transient=False, redirect_stderr=on_a_terminal)

    def show(self, summary: RunSummary, now_s: float) -> None:
        self._live.start()  # does nothing from the second time on
        self._live.update(render(summary, now_s, self._live.console.width), refresh=True)

    def close(self, summary: RunSummary) -> None:
        self._live.stop()


class NotebookView(View):
    """One line with a bar below the cell, and what happened last, renewed in place; how far it is, is known where the
    frames are bounded."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._below = HTML, display(HTML(""), display_id=True)

    def show(self, summary: RunSummary, now_s: float) -> None:
        total = summary.facts.total_frames
        done = f' value="{summary.trained_frames / total:.3f}"' if total else ""
        bar = f'<progress style="width: 20em"{done}></progress>'
        lines = [status_line(summary, now_s), *_newest_events(summary)]
        if summary.evaluation is not None:
            lines.insert(1, told_line(summary.evaluation))
        self._below.update(self._html(bar + " " + "<br>".join(f"<code>{html.escape(line)}</code>" for line in lines)))


def render(summary: RunSummary, now_s: float, width: int) -> RenderableType:
    """The whole view, as something that rich can print on a terminal of `width` columns."""
    with_bar = width >= _WIDTH_WITH_BAR
    parts: list[RenderableType] = [_head(summary, now_s), _processes(summary, now_s, with_bar)]
    if with_bar:
        timed = {name for process in summary.processes.values() for name in process.section_shares(now_s)}
        parts.append(_legend(timed))
    if waiting := waited_for(summary):
        parts.append(Text(waiting, style="yellow"))
    if events := _newest_events(summary):
        parts.append(Text("\n".join(events), style="dim"))
    return Group(*parts)


def _newest_events(summary: RunSummary) -> list[str]:
    return [event_line(record) for record in summary.told if record["kind"] == "event"][-4:]


def _head(summary: RunSummary, now_s: float) -> RenderableType:
    points_s, frames_s = summary.per_second(now_s, "data_points"), summary.per_second(now_s, "frames")
    lags = [each.latest["staleness_max"] for each in summary.workers(now_s) if "staleness_max" in each.latest]
    grid = Table.grid(padding=(0, 3))
    grid.add_row("score", Text(score_text(summary), style="bold"), "best game", number(summary.scores.best))
    grid.add_row("data points/s", number(points_s, 0), "frames/s", number(frames_s, 0))
    grid.add_row("step", number(summary.step), "frames", number(summary.frames))
    grid.add_row("time", duration(summary.hours()[0]), "core-hours", core_hours(summary.cpu_hours))
    workers, staleness = str(summary.active_workers(now_s)), number(max(lags, default=None))
    grid.add_row("workers", workers, "staleness (max)", staleness)
    grid.add_row("cores", cores_text(summary, now_s), "", "")
    if summary.evaluation is not None:
        step = number(summary.evaluation.get("checkpoint_step"))
        grid.add_row("evaluation", evaluation_text(summary.evaluation), "of step", step)
    if summary.not_finite:
        worst = ", ".join(f"{name} {count}×" for name, count in sorted(summary.not_finite.items()))
        grid.add_row("not finite", Text(worst, style="red"))
    return Panel(grid, title=Text(summary.facts.name), title_align="left", expand=False)


def _processes(summary: RunSummary, now_s: float, with_bar: bool) -> Table:
    names = ("frames/s", "cores", "score", "dropped")
    figures = [Column(name, justify="right", no_wrap=True, min_width=len(name)) for name in names]
    process, timed = Column("process", overflow="fold", min_width=10), Column("a step's time", no_wrap=with_bar)
    table = Table(process, *figures, timed, "", box=None, padding=(0, 2, 0, 0), header_style="dim")
    servers, workers = summary.of_roles("server", at_s=now_s), summary.workers(now_s)
    shown = [*servers, *sorted(workers, key=lambda p: _interest(p, now_s))]
    for each in shown[:_ROWS]:
        table.add_row(*_row(each, now_s, with_bar))
    if len(shown) > _ROWS:
        table.add_row(f"… {len(shown) - _ROWS} more")
    return table


def _interest(process: ProcessState, now_s: float) -> tuple[bool, float, int]:
    """Few workers are listed by rank; of many, the silent ones and those that drop most come first."""
    silent = process.is_silent(now_s, HEARD_OF_S)
    return (not silent, -round(process.dropped_share(now_s) or 0.0, 2), process.rank)


def _row(process: ProcessState, now_s: float, with_bar: bool) -> list[RenderableType]:
    note = Text("")
    if process.is_silent(now_s, HEARD_OF_S):
        note = Text(f"silent for {now_s - process.last_time_s:.0f} s", style="red")
    name = process.name + (f" (incarnation {process.incarnation})" if process.incarnation else "")
    cores, timed = number(process.recent.per_second(now_s, "cpu_s")), _timed(process.section_shares(now_s), with_bar)
    if process.role == "server":
        stale = process.totals.get("stale")
        return [name, "", cores, "", f"{number(stale)} stale" if stale else "", timed, note]
    frames_s = number(process.recent.per_second(now_s, "frames"), 0)
    dropped = f"{number(process.totals.get('dropped', 0.0))} ({process.dropped_share(now_s) or 0.0:.0%})"
    return [name, frames_s, cores, number(process.scores.mean), dropped, timed, note]


def _timed(parts: dict[str, float], with_bar: bool) -> Text:
    """Shares as a bar of coloured blocks, then the two largest in words."""
    largest = sorted(parts, key=lambda name: -parts[name])[:2]
    words = ", ".join(f"{name} {parts[name]:.0%}" for name in largest)
    if not with_bar:
        return Text(words)
    bar, drawn, reached = Text(), 0, 0.0
    for name in (name for name in SECTIONS if name in parts):
        reached += parts[name]
        until = round(reached * _BAR_WIDTH)
        bar.append("█" * (until - drawn), style=_COLOURS[name])
        drawn = until
    bar.append(" " * (_BAR_WIDTH - drawn) + " " + words)
    return bar


def _legend(timed: Collection[str]) -> Text:
    legend = Text()
    for name in (name for name in SECTIONS if name in timed):
        legend.append("█", style=_COLOURS[name])
        legend.append(f" {name}  ", style="dim")
    return legend
