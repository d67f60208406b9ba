"""A sweep: a study of the user's own points, options of `dba3c train` with several values each, and which was best.

    dba3c sweep CartPole-v1 --learning-rate 1e-3 7e-4 --entropy-cost 0.01 0.001 --seeds 3

has four points: every value with every other. A search (`dba3c.studies.search`) draws its points instead.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from dba3c.studies.figures import PALETTE, new_figure, save
from dba3c.studies.results import PointResult, StudyResults, best_mean_score
from dba3c.studies.statistics import spread_name
from dba3c.studies.study import SWEEP, Point, Search, Study

RANGE = re.compile(r"(?P<low>[^.].*?)\.\.(?P<high>.+)")
"""1e-5..1e-2: what a search draws a number from."""
MOST_DRAWN = 30
"""Points of a figure, from the best on."""


def point_of(words: Sequence[str], values: Sequence[tuple[str, str]], x: float, name: str = "") -> Point:
    """The point with these values of options (name, value), named after them where it gets no name."""
    said = [word for option, value in values for word in (f"--{option}", value)]
    parts = [f"{option}-{re.sub(r'[^A-Za-z0-9.+=,-]+', '_', value)}" for option, value in values]
    return Point(name=name or ",".join(parts), words=(*words, *said), x=x)


def grid(words: Sequence[str], axes: Sequence[tuple[str, ...]], seeds: int) -> Study:
    """Every value with every other.

    Args:
        words: what follows `dba3c train` at every point.
        axes: of each option its name and its values.

    Raises:
        UserError: a range (which only a search can draw from), or nothing that varies.
    """
    if not axes:
        raise UserError("nothing varies: give an option of dba3c train several values, as in --learning-rate 1e-3 3e-4")
    for name, *values in axes:
        if any(RANGE.fullmatch(value) for value in values):
            raise UserError(f"--{name} {' '.join(values)} is a range, which only a search can draw from (--search)")
    names = [name for name, *_ in axes]
    chosen = itertools.product(*(values for _, *values in axes))
    points = tuple(
        point_of(words, list(zip(names, values, strict=True)), number) for number, values in enumerate(chosen)
    )
    return Study(kind=SWEEP, points=points, seeds=tuple(range(seeds)))


def searched(words: Sequence[str], axes: Sequence[tuple[str, ...]], seeds: int, trials: int) -> Study:
    """A study of `trials` points drawn from the axes. Raises UserError: nothing varies, a range has no ends."""
    if not axes:
        raise UserError(
            "nothing varies: give an option of dba3c train several values or a range, as in --learning-rate 1e-4..1e-2"
        )
    for name, *values in axes:
        if len(values) == 1:
            range_of(name, values[0])
        elif any(RANGE.fullmatch(value) for value in values):
            raise UserError(f"--{name} {' '.join(values)}: give one range, or values")
    search = Search(trials=trials, words=tuple(words), axes=tuple(tuple(axis) for axis in axes))
    return Study(kind=SWEEP, points=(), seeds=tuple(range(seeds)), search=search)


def range_of(name: str, text: str) -> tuple[float, float]:
    """The ends of LOW..HIGH, two ints or two floats. Raises UserError: they are none."""
    found = RANGE.fullmatch(text)
    ends = found.groups() if found else ()
    try:
        low, high = (int(end) for end in ends) if all(end.isdigit() for end in ends) else (float(end) for end in ends)
    except ValueError:
        raise UserError(f"--{name} {text} is no range: give two numbers, as in 1e-4..1e-2") from None
    if not low < high or not math.isfinite(low) or not math.isfinite(high):
        raise UserError(f"--{name} {text} is no range: {low:g} is not below {high:g}")
    return low, high


def words_of(point: Point, words: Sequence[str]) -> str:
    """What a point has beyond the words that all have: "learning-rate 1e-3, entropy-cost 0.01"."""
    own = point.words[len(words) :]
    return ", ".join(f"{name.removeprefix('--')} {value}" for name, value in zip(own[::2], own[1::2], strict=True))


def common_words(points: Sequence[Point]) -> tuple[str, ...]:
    """What all points begin with, up to the options that vary."""
    if len(points) < 2:
        return ()
    first, others = points[0].words, [point.words for point in points[1:]]
    same = next((i for i, word in enumerate(first) if any(other[i : i + 1] != (word,) for other in others)), len(first))
    return first[: same - (len(first) - same) % 2]  # a value that differs is told with its option


def ranked(results: StudyResults) -> list[PointResult]:
    """The points, the best first: by the time to the stop score where more than half of the seeds reached it, then by
    the best mean score."""

    def merit(result: PointResult) -> tuple[bool, float, float]:
        time, score = result.time_to_stop_score(), result.estimate(best_mean_score)
        hours = math.inf if time is None else time.median
        return math.isfinite(hours), -hours, -math.inf if score is None else score.centre

    return sorted(results.points, key=merit, reverse=True)


def best_command(result: PointResult) -> str:
    """What trains with a point's options."""
    return shlex.join(["dba3c", "train", *result.point.words])


def told(results: StudyResults) -> list[str]:
    """Lines for people: a table of the points, the best first, and the best one's command."""
    order = ranked(results)
    rows = [("point", "runs", "best mean score", "hours to the stop score")]
    for result in order:
        score, time = result.estimate(best_mean_score), result.time_to_stop_score()
        runs = f"{len(result.curves)} of {len(results.study.seeds)}"
        rows.append((label_of(result, results), runs, str(score or "–"), str(time or "–")))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, f"best: {label_of(order[0], results)}", f"    {best_command(order[0])}"]


def label_of(result: PointResult, results: StudyResults) -> str:
    """A point as its options, e.g. "learning-rate 1e-3"; a trial with its name before them."""
    search = results.study.search
    words = search.words if search else common_words(results.study.points)
    said = words_of(result.point, words)
    return f"{result.point.name}: {said}" if search else said


def draw_points(results: StudyResults, path: Path) -> list[Path]:
    """The best mean score of each point with its spread over seeds, the best on top."""
    shown = [(result, score) for result in ranked(results) if (score := result.estimate(best_mean_score)) is not None]
    if not shown:
        raise UserError("no run has recorded a score")
    left_out, shown = len(shown) - MOST_DRAWN, shown[:MOST_DRAWN]
    figure, axes = new_figure(height_in=1.2 + 0.25 * len(shown))
    places = range(len(shown), 0, -1)
    centres = [score.centre for _, score in shown]
    spread = [[score.centre - score.low for _, score in shown], [score.high - score.centre for _, score in shown]]
    seeds = spread_name(max(len(score.values) for _, score in shown))
    look: dict[str, Any] = {"color": PALETTE[0]}
    axes.errorbar(centres, places, xerr=spread, fmt="o", capsize=3, **look)
    for place, (_, score) in zip(places, shown, strict=True):
        axes.plot(score.values, [place] * len(score.values), ".", alpha=0.35, markersize=4, **look)
    axes.set_yticks(places, [label_of(result, results) for result, _ in shown], fontsize=8)
    axes.set_ylim(0.3, len(shown) + 0.7)
    axes.set_xlabel(f"best mean score, {seeds}" + (f"; {left_out} worse points are not shown" if left_out > 0 else ""))
    return save(figure, path)
