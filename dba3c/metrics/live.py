"""The live view of a terminal: score, speed, where each process's time goes, whose gradients are dropped."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dba3c.metrics.registry import SECTIONS
from dba3c.metrics.summary import ProcessState, RunSummary, event_line
from dba3c.metrics.views import duration, number, score_text

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
_BAR_WIDTH = 30
_SILENT_AFTER_S = 15.0
_ROWS = 20


class RichView:
    """Redraws the run in place. `now_s` decides what counts as silent, so a finished run is shown as it ended."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console or Console(), auto_refresh=False, transient=False)
        self._started = False

    def show(self, summary: RunSummary, now_s: float) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(render(summary, now_s), refresh=True)

    def close(self, summary: RunSummary) -> None:
        if self._started:
            self._live.update(render(summary, summary.newest_s), refresh=True)
            self._live.stop()


def render(summary: RunSummary, now_s: float) -> RenderableType:
    """The whole view, as something that rich can print."""
    parts: list[RenderableType] = [_head(summary, now_s), _processes(summary, now_s), _legend()]
    events = [event_line(event) for event in list(summary.events)[-4:]]
    if events:
        parts.append(Text("\n".join(events), style="dim"))
    return Group(*parts)


def _head(summary: RunSummary, now_s: float) -> RenderableType:
    hours, core_hours = summary.hours()
    frames_per_s = summary.per_second(now_s, "frames")
    grid = Table.grid(padding=(0, 3))
    grid.add_row("score", Text(score_text(summary), style="bold"), "best game", number(summary.scores.best))
    grid.add_row(
        "data points/s", number(summary.per_second(now_s, "data_points"), 0), "frames/s", number(frames_per_s, 0)
    )
    grid.add_row("step", number(summary.step), "frames", number(summary.frames))
    grid.add_row("time", duration(hours), "core-hours", f"{core_hours:.2f}")
    lag = _worst(summary, "staleness_max")
    grid.add_row("workers", str(summary.active_workers(now_s)), "staleness (max)", number(lag))
    if summary.evaluation is not None:
        seen = summary.evaluation
        told = f"mean {number(seen.get('mean'))}, IQM {number(seen.get('iqm'))} of {seen.get('games')} games"
        grid.add_row("evaluation", told, "of step", number(seen.get("checkpoint_step")))
    if summary.not_finite:
        worst = ", ".join(f"{name} {count}×" for name, count in sorted(summary.not_finite.items()))
        grid.add_row("not finite", Text(worst, style="red"))
    return Panel(grid, title=summary.facts.name, title_align="left", expand=False)


def _worst(summary: RunSummary, name: str) -> float | None:
    return max((p.latest[name] for p in summary.workers() if name in p.latest), default=None)


def _processes(summary: RunSummary, now_s: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading, side in (("process", "left"), ("frames/s", "right"), ("score", "right"), ("dropped", "right")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    table.add_column("a step's time", justify="left", no_wrap=True)
    table.add_column("")
    shown = [*summary.of_roles("server"), *sorted(summary.workers(), key=lambda p: _interest(p, now_s))]
    for process in shown[:_ROWS]:
        table.add_row(*_row(process, summary, now_s))
    if len(shown) > _ROWS:
        table.add_row(f"… {len(shown) - _ROWS} more")
    return table


def _interest(process: ProcessState, now_s: float) -> tuple[bool, float, int]:
    """Few workers are listed by rank; of many, the silent ones and those that drop most come first."""
    silent = now_s - process.last_time_s > _SILENT_AFTER_S
    return (not silent, -round(process.dropped_share(now_s), 2), process.rank)


def _row(process: ProcessState, summary: RunSummary, now_s: float) -> list[RenderableType]:
    silent_s = now_s - process.last_time_s
    note = Text(f"silent for {silent_s:.0f} s", style="red") if silent_s > _SILENT_AFTER_S else Text("")
    name = process.name + (f" (incarnation {process.incarnation})" if process.incarnation else "")
    if process.role == "server":
        counts = f"{number(process.totals.get('stale'))} stale" if process.totals.get("stale") else ""
        return [name, "", "", counts, _bar(process.section_shares(now_s)), note]
    frames_per_s = process.recent.per_second(now_s, "frames")
    dropped = f"{number(process.totals.get('dropped', 0.0))} ({process.dropped_share(now_s):.0%})"
    score = number(process.scores.mean)
    return [name, number(frames_per_s, 0), score, dropped, _bar(process.section_shares(now_s)), note]


def _bar(parts: dict[str, float]) -> Text:
    """Shares as a bar of coloured blocks, then the two largest in words."""
    bar, drawn, reached = Text(), 0, 0.0
    for name in (name for name in SECTIONS if name in parts):
        reached += parts[name]
        until = round(reached * _BAR_WIDTH)
        bar.append("█" * (until - drawn), style=_COLOURS[name])
        drawn = until
    largest = sorted(parts, key=lambda name: -parts[name])[:2]
    bar.append(" " * (_BAR_WIDTH - drawn) + " " + ", ".join(f"{name} {parts[name]:.0%}" for name in largest))
    return bar


def _legend() -> Text:
    legend = Text()
    for name in SECTIONS:
        legend.append("█", style=_COLOURS[name])
        legend.append(f" {name}  ", style="dim")
    return legend
