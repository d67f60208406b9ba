"""Writes docs/metrics.md from the registry: `python -m dba3c.metrics.docs > docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterable

from dba3c.metrics import registry as metric_registry
from dba3c.metrics.registry import PER_WORKER_CHARTS, SECTIONS, Metric

_INTRODUCTION = """# Metrics

*Generated from `dba3c/metrics/registry.py` by `python -m dba3c.metrics.docs > docs/metrics.md`; a test keeps it so.*

Every process of a run appends one JSON object a line to its own file, `RUN/metrics/ROLE-RANK.jsonl`. These files are
the truth: the live view, the trackers, the stop rule, exports and plots are computed from them.

Every record has `kind`, `time_s` (unix), `step` (the newest committed step its writer knew), `role`, `rank` and
`incarnation` (+1 by each restart, +100 by each launch). Step and server records are reduced over windows (about one
second by default) by the rule in the tables, hold `count` (how many became one), `window_s` (the seconds that they are
of), `cpu_s` (processor seconds used) and `sections_s` (seconds by section). A value that is not finite becomes null,
and `not_finite` counts it by name.

Three counts, each made in one place: **frames** that emulators ran (as drawn, where the frame skip is random; a reset's
are none) and **agent steps**, both counted by whoever steps environments (workers, actors), whatever becomes of them;
**data points**, agent steps that entered an accepted update, each once (of a replay: when an update first uses them).
`--total-frames` is data points × the frame skip, its mean where it is random.
"""
_KINDS = {
    "step": "Recorded for each gradient of a worker or learner",
    "server": "Recorded about once a second by a server, or by the rank that speaks where there is none",
    "episode": "Recorded for each finished game",
    "evaluation": "Recorded for each evaluated checkpoint (with `interval_95`, the bootstrap interval of the IQM)",
}


def render() -> str:
    """The text of docs/metrics.md."""
    parts = [_INTRODUCTION]
    for kind, title in _KINDS.items():
        rows = (
            (f"`{m.name}`", m.unit, m.reduction, m.meaning, f"`{m.chart}`" if m.chart else "")
            for m in metric_registry.METRICS
            if m.kind == kind
        )
        parts.append(
            f'## {title}: `kind="{kind}"`\n\n' + _table(("name", "unit", "reduced by", "meaning", "chart"), rows)
        )
    parts.append(
        "`episode` records also say `terminated` and `truncated`; `event` records hold `event` (joined, left, killed, "
        "shrunk, checkpoint, ...) and `message`, one line for people.\n\n"
        "Reduced by `norm`: the mean in time, and the root of the sum of squares over shards."
    )
    sections = ((f"`{name}`", meaning) for name, meaning in SECTIONS.items())
    parts.append("## Sections of a step\n\n" + _table(("name", "meaning"), sections))
    charts = ((f"`{m.chart}`", m.unit, _chart_meaning(m)) for m in metric_registry.charts().values())
    parts.append("## Charts, the same in every tracker\n\n" + _table(("chart", "unit", "meaning"), charts))
    per_worker = ((f"`{name}`", unit, meaning) for name, (unit, meaning) in PER_WORKER_CHARTS.items())
    parts.append(
        "## Charts of each worker, as `ROLE-RANK/NAME`, e.g. `worker-3/score`\n\n"
        + _table(("name", "unit", "meaning"), per_worker)
    )
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _chart_meaning(metric: Metric) -> str:
    if metric.kind == "chart":
        return metric.meaning
    return f"{metric.meaning} (`{metric.kind}` record's `{metric.name}`, {metric.reduction} since the last point)"


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(headings)]
    lines += [["---"] * len(lines[0])]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(render(), end="")
