"""One HTML file that opens without a server: figures inlined, a table, and what is missing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from dba3c.errors import warn_on_stderr, writing
from dba3c.runs.atomic_files import write_atomically
from dba3c.studies.builtin import DBA3C_SCORES
from dba3c.studies.figures import MEASURES, against_axis, draw, scores
from dba3c.studies.plots.curve import check_chart
from dba3c.studies.plots.learning_curves import X_AXES
from dba3c.studies.results import PointResult, StudyResults, read_results
from dba3c.studies.statistics import Estimate, TimeToGoal

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
img{max-width:100%}table{border-collapse:collapse}
td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}.problems{color:#8a3b00}"""


def plot_study(folder: str | Path, into: str | Path | None = None) -> list[Path]:
    """Draws a study's figures and its report.html; returns what was written.

    Args:
        into: a folder; None for FOLDER/figures.

    Raises:
        UserError: no study, or nothing that can be drawn.
    """
    results = read_results(folder)
    target = Path(folder) / "figures" if into is None else Path(into)
    told = len(results.problems)
    written = draw(results, target)
    report = target / "report.html"
    with writing(report):
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(report, report_text(results, written, Path(folder).resolve().name))
    for line in results.problems[told:]:
        warn_on_stderr(line)
    return [*written, report]


def plot_metric(folder: str | Path, y: str, x: str | None = None, into: str | Path | None = None) -> list[Path]:
    """Draws one chart of a study into INTO/Y.png and .svg; a broken or missing run costs a line.

    Args:
        y: a chart's name (docs/metrics.md).
        x: "frames", "hours", "core-hours" or a chart: a line for each point; None: the study's own axis, where it has
            one, else "frames".

    Raises:
        UserError: no study, an unknown chart, or no run that recorded it.
    """
    check_chart(y)
    if x is not None:
        check_chart(X_AXES.get(x, x))
    results = read_results(folder)
    told = len(results.problems)
    target = Path(folder) / "figures" if into is None else Path(into)
    by_axis = x is None and bool(results.study.x_name)
    figure = against_axis(y) if by_axis else scores(x or "frames", y)
    try:
        return figure(results, target / y.replace("/", "_"))
    finally:
        for line in results.problems[told:]:
            warn_on_stderr(line)


def report_text(results: StudyResults, figures: Sequence[Path], title: str) -> str:
    """The whole page. `figures`: files as `draw` returned them; the SVGs are inlined."""
    runs = sum(len(result.curves) for result in results.points)
    total = len(results.study.points) * len(results.study.seeds)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1><p>Study <b>{escape(results.study.kind)}</b>: {runs} of {total} runs, "
        f"{len(results.points)} of {len(results.study.points)} points. Centres are interquartile means over seeds "
        "(means below four), with [95 % bootstrap intervals], or [lowest to highest] of fewer than five seeds. Times "
        "are medians in which a seed that did not reach the score counts as later than it was seen.</p>",
        *(_image(path) for path in figures if path.suffix == ".svg"),
        _table(results),
        _problems(results.problems),
        f"<h2>Made by</h2><pre>{escape(_origins(results))}</pre></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(path.stem)}" src="data:image/svg+xml;base64,{data}"></p>'


def _table(results: StudyResults) -> str:
    games = results.study.kind == "games"
    names = ["point", "runs", *MEASURES, *(["DBA3C's score"] if games else [])]
    rows = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"]
    for result in results.points:
        cells = [result.point.name, f"{len(result.curves)} of {len(results.study.seeds)}"]
        cells += [_text(measure(result)) for measure in MEASURES.values()]
        cells += [_published(result)] if games else []
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "<table>" + "\n".join(rows) + "</table>"


def _text(found: Estimate | TimeToGoal | None) -> str:
    return "–" if found is None else str(found)


def _published(result: PointResult) -> str:
    score = DBA3C_SCORES.get(f"ALE/{result.point.name}-v5")
    return "not published" if score is None else f"{score:g}"


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    return "<h2>Left out</h2><ul class=problems>" + "".join(f"<li>{escape(line)}</li>" for line in problems) + "</ul>"


def _origins(results: StudyResults) -> str:
    """Command, machine, commit and date of each point's first run, as its meta.json says."""
    lines = []
    for result in results.points:
        lives = result.curves[0].meta.get("lives") or [{}]
        host, source = lives[0].get("host") or {}, lives[0].get("source")
        cpu = host.get("cpu", host) if isinstance(host, dict) else host
        lines.append(f"{result.point.name}: {lives[0].get('command') or 'dba3c train ' + ' '.join(result.point.words)}")
        lines.append(f"    {lives[0].get('cores', '?')} cores, {cpu}, source {source}")
    return "\n".join(lines)
