"""One HTML file that opens without a server: figures inlined, a table, and what is missing."""

import base64
import math
import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from dba3c.errors import UserError, prefixed, writing
from dba3c.metrics import registry as metric_registry
from dba3c.runs.files import printable, resolved, write_atomically
from dba3c.studies.curve import Curve, check_chart
from dba3c.studies.figures import (
    IDEAL,
    X_AXES,
    begin_y_at_zero,
    common_goal,
    draw_measured,
    draw_times,
    finish,
    new_figure,
    plot_learning_curves,
    save,
)
from dba3c.studies.page import made_by
from dba3c.studies.results import (
    PointResult,
    StudyResults,
    data_points_per_s,
    dropped_share,
    each,
    mean_of,
    read_results,
)
from dba3c.studies.statistics import Estimate, TimeToGoal
from dba3c.studies.study import DBA3C_SCORES, SWEEP
from dba3c.studies.sweep import draw_points, ranked

Draw = Callable[[StudyResults, Path], list[Path]]
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
img{max-width:100%}table{border-collapse:collapse}
td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}.problems{color:#8a3b00}"""


def plot_study(folder: str | Path, into: str | Path | None = None, results: StudyResults | None = None) -> list[Path]:
    """Draws a study's figures (one that cannot be drawn costs a line) and its report.html; returns what was written.

    Args:
        into: a folder; None for FOLDER/figures.
        results: what was read there, if it was.

    Raises:
        UserError: no study, or nothing that can be drawn.
    """
    results = read_results(folder) if results is None else results
    if results.study.kind == SWEEP:
        results.points = ranked(results)
    target = Path(folder) / "figures" if into is None else Path(into)
    written: list[Path] = []
    for name, figure in FIGURES[results.study.kind].items():
        try:
            written += figure(results, target / name)
        except UserError as error:
            results.leave_out(f"figure {name}: {error}")
    report = target / "report.html"
    with writing(report):
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(report, printable(report_text(results, written, resolved(folder).name)))
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
    target = Path(folder) / "figures" if into is None else Path(into)
    by_axis = x is None and bool(results.study.x_name)
    figure = scores(x or "frames", y)
    if by_axis:
        unit = metric_registry.charts()[y].unit
        figure = against_axis(mean_of(y), f"{y}, mean of the run", f"{y} ({unit})", from_zero=False)
    return figure(results, target / y.replace("/", "_"))


def report_text(results: StudyResults, figures: Sequence[Path], title: str) -> str:
    """The whole page. `figures`: files, of which the SVGs are inlined."""
    runs = sum(len(result.curves) for result in results.points)
    search = results.study.search
    points = search.trials if search else len(results.study.points)  # of a search these are the trials begun so far
    how_many = f"{runs} of {points * len(results.study.seeds)} runs, {len(results.points)} of {points} points"
    svgs = [path for path in figures if path.suffix == ".svg"]
    images = [(path.stem, base64.b64encode(path.read_bytes()).decode()) for path in svgs]
    problems = "".join(f"<li>{escape(line)}</li>" for line in results.problems)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1><p>Study <b>{escape(results.study.kind)}</b>: {how_many}. "
        "Centres are interquartile means over seeds (means below four), with [95 % bootstrap intervals], or [lowest to "
        "highest] of fewer than five seeds. Times "
        "are medians in which a seed that did not reach the score, or has no curve, counts as later than it was "
        "seen.</p>",
        *(f'<p><img alt="{escape(stem)}" src="data:image/svg+xml;base64,{data}"></p>' for stem, data in images),
        _table(results),
        f"<h2>Left out, or not whole</h2><ul class=problems>{problems}</ul>" if problems else "",
        f"<h2>Made by</h2><pre>{escape(_origins(results))}</pre></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _table(results: StudyResults) -> str:
    games = results.study.kind == "games"
    names = ["point", "runs", *MEASURES, *(["DBA3C's score"] if games else [])]
    rows = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"]
    for result in results.points:
        cells = [result.point.name, f"{len(result.curves)} of {len(results.study.seeds)}"]
        cells += [str(measure(result) or "–") for measure in MEASURES.values()]
        if games:
            score = DBA3C_SCORES.get(f"ALE/{result.point.name}-v5")
            cells.append("not published" if score is None else f"{score:g}")
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "<table>" + "\n".join(rows) + "</table>"


def _origins(results: StudyResults) -> str:
    """Command, machine, commit and date of each point's first run, as its meta.json says."""
    lines = []
    for result in results.points:
        life = (result.curves[0].meta.get("lives") or [{}])[0]
        command = life.get("command") or shlex.join(["dba3c", "train", *result.point.words])
        lines.append(f"{result.point.name}: {command}")
        try:
            lines.append(f"    {made_by(life)}")
        except (KeyError, TypeError, AttributeError):  # an older folder's, or written by hand
            lines.append("    on a machine that its meta.json does not tell")
    return "\n".join(lines)


# -- the figures of each kind of study ---------------------------------------------------------------------------------


def _pairs(
    results: StudyResults, measure: Callable[[Curve], float], what: str, above_zero: bool = False
) -> list[tuple[float, Estimate]]:
    """(x, estimate) of the points that have the measure; `above_zero`: that also can be divided by."""
    pairs = each(results.points, measure)
    if not pairs:
        raise UserError(f"no run has recorded {what}")
    if above_zero:
        pairs = [(x, estimate) for x, estimate in pairs if x > 0 and estimate.centre > 0]
        if not pairs:
            raise UserError("no point is above 0")
    return pairs


def against_axis(
    measure: Callable[[Curve], float], what: str, y_name: str, *, from_zero: bool = True, ideal: bool = False
) -> Draw:
    """A quantity against the study's axis, on logarithmic axes beside a line in proportion where that is `ideal`."""

    def figure_of(results: StudyResults, path: Path) -> list[Path]:
        pairs = _pairs(results, measure, what, above_zero=ideal)
        x = [x for x, _ in pairs]
        figure, axes = new_figure()
        draw_measured(axes, pairs, what)
        if ideal:
            axes.plot(x, [pairs[0][1].centre * one / x[0] for one in x], label="linear", **IDEAL)
        elif from_zero:
            begin_y_at_zero(axes)
        finish(axes, results.study.x_name, y_name, x, log=ideal)
        return save(figure, path)

    return figure_of


def efficiency(results: StudyResults, path: Path) -> list[Path]:
    """Data points per second and worker, as a share of the smallest point's."""
    pairs = _pairs(results, data_points_per_s, "data points per second", above_zero=True)
    x0, one = pairs[0][0], pairs[0][1].centre
    share = [(x, e.times(x0 / x / one)) for x, e in pairs]
    figure, axes = new_figure()
    draw_measured(axes, share, "efficiency")
    axes.axhline(1.0, **IDEAL)
    axes.set_ylim(0, max(1.2, 1.02 * axes.get_ylim()[1]))
    y_name = f"data points/s per worker, {x0:g} worker{'s' if x0 > 1 else ''} = 1"
    finish(axes, results.study.x_name, y_name, [x for x, _ in share])
    return save(figure, path)


def time_to_score(results: StudyResults, path: Path) -> list[Path]:
    """Minutes to the stop score against the number of workers, with the theoretical line T(1) / n."""
    found = [(result.point.x, result.time_to_stop_score()) for result in results.points]
    pairs = sorted(((x, time.times(60)) for x, time in found if time is not None and x > 0), key=lambda pair: pair[0])
    if not pairs:
        raise UserError("no run had a stop score")
    x = [x for x, _ in pairs]
    figure, axes = new_figure()
    draw_times(axes, pairs, "time to the stop score")
    first = pairs[0][1].median
    if math.isfinite(first):
        axes.plot(x, [first * x[0] / one for one in x], label="theoretical", **IDEAL)
    finish(axes, results.study.x_name, "minutes to the stop score", x, log=True)
    return save(figure, path)


def scores(x: str, y: str = "score/mean") -> Draw:
    """Learning curves, a line with its band for each point."""

    def figure(results: StudyResults, path: Path) -> list[Path]:
        groups = {result.point.name: result.curves for result in results.points}
        goal = common_goal((curve for curves in groups.values() for curve in curves), y)
        warn = prefixed(f"figure {path.name}", results.leave_out)
        return plot_learning_curves(groups, path, x, y, goal=goal, warn=warn, seeds=len(results.study.seeds))

    return figure


def each_game(results: StudyResults, path: Path) -> list[Path]:
    """A figure of learning curves for each game: their scores share no axis."""
    written = []
    for result in results.points:
        alone = StudyResults(results.study, [result], results.problems)
        try:
            written += scores("frames")(alone, path.with_name(f"{path.name}-{result.point.name}"))
        except UserError as error:
            results.leave_out(f"figure of {result.point.name}: {error}")
    return written


_SPEED = (data_points_per_s, "data points per second", "data points/s")
speed = against_axis(*_SPEED)

FIGURES: dict[str, dict[str, Draw]] = {
    "scaling": {
        "time_to_score": time_to_score,
        "speed": against_axis(*_SPEED, ideal=True),
        "efficiency": efficiency,
        "scores": scores("hours"),
    },
    "parameter_servers": {"speed": speed},
    "stragglers": {
        "speed": speed,
        "steps": against_axis(mean_of("speed/steps_per_s"), "steps per second", "steps/s"),
        "dropped": against_axis(dropped_share, "dropped gradients", "share of gradients"),
    },
    "learning_curves": {"scores": scores("frames"), "scores_by_hours": scores("hours")},
    "architectures": {"scores": scores("frames"), "scores_by_hours": scores("hours")},
    "games": {"scores": each_game},
    SWEEP: {"points": draw_points},
}

MEASURES: dict[str, Callable[[PointResult], Estimate | TimeToGoal | str | None]] = {
    "data points/s": lambda result: result.estimate(data_points_per_s),
    "hours to the stop score": PointResult.time_to_stop_score,
    "best mean score": lambda result: result.best_mean_told,
    "dropped share": lambda result: result.estimate(dropped_share),
}
"""Columns of a report's table."""
