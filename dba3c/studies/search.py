"""Points drawn by Optuna (Akiba et al. 2019): a tree-structured Parzen estimator over the trials before.

Its journal is a file in the study's folder, so trials of several processes, and of several nodes that share the folder,
know of each other, and a search that was stopped goes on. Trial i belongs to whoever is asked to do it.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

from dba3c.errors import UserError
from dba3c.studies.curve import load_curve
from dba3c.studies.results import best_mean_score
from dba3c.studies.study import Point, Run, Study, save_trial
from dba3c.studies.sweep import RANGE, point_of, range_of

JOURNAL_FILE = "optuna.journal"
LOG_FROM = 10.0
"""A range whose ends are that far apart, and above 0, is drawn from logarithmically."""
TASK = "task"


class OptunaSearch:
    """The trials of one study. Raises UserError where Optuna is not installed."""

    def __init__(self, study: Study, folder: Path, optuna: ModuleType | None = None) -> None:
        if study.search is None:
            raise UserError(f"{folder} holds no search")
        self._optuna: Any = optuna or installed()
        self._study, self._search, self._folder = study, study.search, folder
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        backend = self._optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_FILE))
        self._storage = self._optuna.storages.JournalStorage(backend)

    def point(self, number: int) -> Point:
        """Trial `number` (from 0): as it was drawn before, or drawn now."""
        name = f"trial-{number:03d}"
        known = [point for point in self._study.points if point.name == name]
        if known:
            return known[0]
        trials = self._trials(seed=number)
        for lost in trials.get_trials(deepcopy=False):  # drawn by a life that ended before it could say what
            if lost.user_attrs.get(TASK) == number and not lost.state.is_finished():
                trials.tell(lost.number, state=self._optuna.trial.TrialState.FAIL)
        trial = trials.ask()
        trial.set_user_attr(TASK, number)
        values = [(option, _drawn(trial, option, possible)) for option, *possible in self._search.axes]
        point = point_of(self._search.words, values, x=number, name=name)
        save_trial(point, self._folder)
        return point

    def runs(self, point: Point) -> list[Run]:
        """Its runs, one a seed."""
        return [Run(point=point, seed=s, folder=self._folder / point.name / f"seed-{s}") for s in self._study.seeds]

    def tell(self, number: int, runs: list[Run]) -> float | None:
        """Say how good trial `number` was: the mean over its seeds of the best mean score; None where one has none."""
        trials = self._trials(seed=number)
        scores = [_score(run) for run in runs]
        value = sum(scores) / len(scores)
        for trial in trials.get_trials(deepcopy=False):
            if trial.user_attrs.get(TASK) == number and not trial.state.is_finished():
                if math.isnan(value):
                    trials.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
                else:
                    trials.tell(trial.number, value)
        return None if math.isnan(value) else value

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
    return f"{trial.suggest_float(option, low, high, log=log):.3g}"


def _score(run: Run) -> float:
    try:
        return best_mean_score(load_curve(run.folder))
    except UserError:
        return math.nan
