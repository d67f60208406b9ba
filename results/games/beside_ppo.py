"""The preset `atari` beside PPO, which it was before: whole runs of both, from this folder and the recipes'.

Drawn by `python results/plot.py games`. A run is whole when it used its 1.5 core-hours, or reached the goal of its
game. Scores are means of the last 50 games.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from games.measure import GOALS, HERE, RECIPE, Trained, name_of

from dba3c.studies.curve import load_curve
from dba3c.studies.figures import PALETTE, finish, new_figure, save
from dba3c.studies.statistics import human_normalised, performance_profile, probability_of_improvement

WHOLE_CORE_HOURS = 1.45
BEFORE = ("nstep-normalized", "ppo-256", "ppo-256-normalized")
"""Recipes of which runs may be whole."""
Scores = dict[str, tuple[float, ...]]


class Beside(NamedTuple):
    """Of games that have whole runs of both: env id → human-normalised scores of the runs."""

    preset: Scores
    ppo: Scores

    @property
    def probability(self) -> float:
        """That a run of the preset beats one of PPO at the same game, the mean over games."""
        return probability_of_improvement(list(self.preset.values()), list(self.ppo.values()))


def beside(folder: Path = HERE) -> Beside:
    """What is committed now; a run that lies in both folders counts once."""
    preset, ppo = {}, {}
    for env_id in GOALS:
        name = name_of(env_id)
        folders = [*(folder / name).glob("seed-*")]
        folders += [path for recipe in BEFORE for path in (folder.parent / "recipes").glob(f"{recipe}-{name}/seed-*")]
        runs = {(run.recipe, *run.line[:, -1]): run for path in folders for run in [_trained(path, name)]}
        whole = [run for run in runs.values() if run.line[0, -1] > WHOLE_CORE_HOURS or run.core_hours_to_goal]
        ours = [run for run in whole if run.recipe == RECIPE]
        theirs = [run for run in whole if run.recipe.startswith("PPO")]
        if ours and theirs:
            preset[env_id], ppo[env_id] = _scores(ours), _scores(theirs)
    return Beside(preset, ppo)


def _trained(path: Path, name: str) -> Trained:
    return Trained(path, name, int(path.name.removeprefix("seed-")), load_curve(path))


def _scores(runs: Sequence[Trained]) -> tuple[float, ...]:
    scores = (human_normalised(run.env_id, float(run.line[1, -1])) for run in runs)
    return tuple(score for score in scores if score is not None)


def draw(folder: Path) -> None:
    """Performance profiles: the share of runs above each human-normalised score, the mean over games."""
    found = beside(folder)
    figure, axes = new_figure()
    thresholds = np.linspace(0.0, 12.0, 481)
    for index, (who, scores) in enumerate((("actor-critic, the preset", found.preset), ("PPO", found.ppo))):
        profile = performance_profile(list(scores.values()), thresholds)
        runs = sum(map(len, scores.values()))
        axes.step(thresholds, profile, where="post", color=PALETTE[index], label=f"{who}: {runs} runs")
    axes.set_xlim(0.0, 12.0)
    axes.set_ylim(0.0, 1.02)
    told = f"a run of the preset beats one of PPO with probability {found.probability:.2f}"
    runs_told = f"{len(found.preset)} Atari games, sticky actions off, 1.5 core-hours or the goal"
    axes.set_title(f"{runs_told}\n{told}", fontsize=9)
    finish(axes, "human-normalised score τ (a person: 1)", "share of runs above τ, mean over games", range(0, 13, 2))
    save(figure, folder / "profiles")
