"""A sweep: a study of the user's own points, options of `dba3c train` with several values each, and which was best.

    dba3c sweep CartPole-v1 --learning-rate 1e-3 7e-4 --entropy-cost 0.01 0.001 --seeds 3

has four points: every value with every other. A search draws its points instead, by Optuna (Akiba et al. 2019): a
tree-structured Parzen estimator over the trials before. Its journal is a file in the study's folder, so trials of
several processes, and of several nodes that share the folder, know of each other, and a search that was stopped goes
on. Trial i belongs to whoever is asked to do it.
"""

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dba3c.config import typed_options
from dba3c.errors import UserError
from dba3c.studies.curve import NothingRecorded, load_curve
from dba3c.studies.figures import PALETTE, new_figure, plain, save, spread_names
from dba3c.studies.results import PointResult, StudyResults, best_mean_score
from dba3c.studies.study import SWEEP, Search, Study, StudyPoint, StudyRun, save_trial, saved_trial

RANGE = re.compile(r"(?P<low>[^.].*?)\.\.(?P<high>.+)")
"""1e-5..1e-2: what a search draws a number from."""
JOURNAL_FILE = "optuna.journal"
LOG_FROM = 10.0
"""A range whose ends are that far apart, and above 0, is drawn from logarithmically."""
TASK = "task"
MOST_DRAWN = 30
"""Points of a figure, from the best on."""
_LETTERS_WITH_ROOM, _LETTER_IN = 50, 0.06
"""Of a point's label; it grows wider for longer ones."""


def point_of(words: Sequence[str], values: Sequence[tuple[str, str]], x: float, name: str = "") -> StudyPoint:
    """The point with these values of options (name, value), named after them where it gets no name."""
    said = [word for option, value in values for word in (f"--{option}", value)]
    parts = [f"{option}-{re.sub(r'[^A-Za-z0-9.+=,-]+', '_', value)}" for option, value in values]
    return StudyPoint(name=name or ",".join(parts), words=(*words, *said), x=x)


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
    chosen = itertools.product(*([(name, value) for value in values] for name, *values in axes))
    points = tuple(point_of(words, values, number) for number, values in enumerate(chosen))
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
        low, high = (float(end) for end in ends)
    except ValueError:
        raise UserError(f"--{name} {text} is no range: give two numbers, as in 1e-4..1e-2") from None
    if low.is_integer() and high.is_integer() and _takes_whole_numbers(name):
        low, high = int(low), int(high)
    if not low < high or not math.isfinite(low) or not math.isfinite(high):
        raise UserError(f"--{name} {text} is no range: {low:g} is not below {high:g}")
    return low, high


def _takes_whole_numbers(name: str) -> bool:
    try:
        return all(type(value) is int for value in typed_options({name.replace("-", "_"): 1.0}).values())
    except UserError:
        return False


def words_of(point: StudyPoint, words: Sequence[str]) -> str:
    """What a point has beyond the words that all have: "learning-rate 1e-3, entropy-cost 0.01"."""
    return " ".join(point.words[len(words) :]).removeprefix("--").replace(" --", ", ")


def common_words(points: Sequence[StudyPoint]) -> tuple[str, ...]:
    """What all points begin with, up to the options that vary."""
    if len(points) < 2:
        return ()
    first, others = points[0].words, [point.words for point in points[1:]]
    same = next((i for i, word in enumerate(first) if any(other[i : i + 1] != (word,) for other in others)), len(first))
    return first[: same - (len(first) - same) % 2]  # a value that differs is told with its option


# -- a search ----------------------------------------------------------------------------------------------------------


class OptunaSearch:
    """The trials of one search of a study, in the study's folder. Raises UserError where Optuna is not installed."""

    def __init__(self, search: Search, folder: Path) -> None:
        self._optuna: Any = installed()
        self._search, self._folder = search, folder
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        backend = self._optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_FILE))
        self._storage = self._optuna.storages.JournalStorage(backend)

    def point(self, number: int) -> StudyPoint:
        """Trial `number` (from 0): as it was drawn before, or drawn now."""
        name = f"trial-{number:03d}"
        if (known := saved_trial(name, self._folder)) is not None:  # asked of the folder: others draw trials, too
            return known
        trials = self._trials(seed=number)
        trial = trials.ask()
        trial.set_user_attr(TASK, number)
        values = [(option, _drawn(trial, option, possible)) for option, *possible in self._search.axes]
        point = point_of(self._search.words, values, x=number, name=name)
        if save_trial(point, self._folder):
            self._end(number, but=trial.number)  # one drawn by a life that ended before it could say what
            return point
        trials.tell(trial.number, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)
        return self.point(number)  # another process was first

    def tell(self, number: int, runs: list[StudyRun]) -> float | None:
        """Say how good trial `number` was: the mean over its seeds of the best mean score; None, and that it failed,
        where one has none, or diverged. Raises UserError: one cannot be read, which says nothing of it."""
        try:
            curves = [load_curve(run.folder) for run in runs]
            scores = [math.nan if curve.diverged else best_mean_score(curve) for curve in curves]
        except NothingRecorded:
            scores = [math.nan]
        mean = sum(scores) / len(scores)
        value = None if math.isnan(mean) else mean
        self._end(number, value)
        return value

    def _end(self, number: int, value: float | None = None, but: int = -1) -> None:
        """What has been drawn for trial `number` and is not finished had this value; None: it failed. `but`: which of
        Optuna's own numbers goes on."""
        state = self._optuna.trial.TrialState.FAIL if value is None else None
        trials = self._trials(seed=number)
        for trial in trials.get_trials(deepcopy=False):
            if trial.user_attrs.get(TASK) == number and trial.number != but and not trial.state.is_finished():
                trials.tell(trial.number, value, state=state, skip_if_finished=True)

    def _trials(self, seed: int) -> Any:
        """Optuna's study. The same trials before give the same next one."""
        sampler = self._optuna.samplers.TPESampler(seed=seed)
        return self._optuna.create_study(
            study_name="sweep", storage=self._storage, sampler=sampler, direction="maximize", load_if_exists=True
        )


def installed() -> ModuleType:
    """Optuna. Raises UserError: it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError("--search optuna needs Optuna: pip install 'dba3c[sweep]'") from error
    return optuna


def _drawn(trial: Any, option: str, possible: list[str]) -> str:
    if len(possible) > 1 or not RANGE.fullmatch(possible[0]):
        return str(trial.suggest_categorical(option, possible))
    low, high = range_of(option, possible[0])
    log = low > 0 and high >= LOG_FROM * low
    if isinstance(low, int) and isinstance(high, int):
        return str(trial.suggest_int(option, low, high, log=log))
    value = trial.suggest_float(option, low, high, log=log)
    said = f"{value:.10g}"  # a discount of 0.9995 is not one of 1
    return said if low <= float(said) <= high else repr(value)


# -- what was found ----------------------------------------------------------------------------------------------------


def ranked(results: StudyResults) -> list[PointResult]:
    """The points, the best first: by the time to the stop score where more than half of the seeds reached it, then by
    the best mean score, also one of too few games, which may yet turn out either way."""

    def merit(result: PointResult) -> tuple[bool, float, float]:
        hours, score = _hours(result), result.estimate(best_mean_score)
        return math.isfinite(hours), -hours, -math.inf if score is None else score.centre

    return sorted(results.points, key=merit, reverse=True)


def _hours(result: PointResult) -> float:
    """The median time to the stop score, inf where half of the seeds or more did not reach it."""
    time = result.time_to_stop_score()
    return math.inf if time is None else time.median


def told(results: StudyResults) -> list[str]:
    """Lines for people: a table of the points, the best first, and the best one's command; where the best mean is of
    too few games, that of the best one of enough."""
    order = ranked(results)
    rows = [("point", "runs", "best mean score", "hours to the stop score")]
    for result in order:
        runs = f"{len(result.curves)} of {len(results.study.seeds)}"
        time = str(result.time_to_stop_score() or "–")
        rows.append((label_of(result, results), runs, result.best_mean_told or "–", time))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sure = [result for result in order if math.isfinite(_hours(result)) or result.has_enough_games]
    decided = sure[:1] == order[:1]
    if not decided:
        lines.append("undecided: the best mean is of too few games; raise --total-frames (with another --into)")
    for best in sure[:1]:
        lines.append(f"best{'' if decided else ' of enough games'}: {label_of(best, results)}")
        lines.append(f"    {shlex.join(['dba3c', 'train', *best.point.words])}")
    return lines


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
    seeds = spread_names([len(score.values) for _, score in shown])
    look: dict[str, Any] = {"color": PALETTE[0]}
    axes.errorbar(centres, places, xerr=spread, fmt="o", capsize=3, **look)
    for place, (_, score) in zip(places, shown, strict=True):
        axes.plot(score.values, [place] * len(score.values), ".", alpha=0.35, markersize=4, **look)
    few = ["" if result.has_enough_games else " (too few games)" for result, _ in shown]
    labels = [plain(label_of(result, results)) + mark for (result, _), mark in zip(shown, few, strict=True)]
    figure.set_figwidth(figure.get_figwidth() + _LETTER_IN * max(0, max(map(len, labels)) - _LETTERS_WITH_ROOM))
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(0.3, len(shown) + 0.7)
    axes.set_xlabel(f"best mean score, {seeds}" + (f"; {left_out} worse points are not shown" if left_out > 0 else ""))
    return save(figure, path)
