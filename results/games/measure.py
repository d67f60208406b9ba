"""Seven games with one preset, `atari`, and the same hyperparameters: what run_queue.py has trained so far.

    python results/run_queue.py run games    (trains: core-hours; stopped, it goes on)
    python results/games/measure.py          (plays 30 full games with each new checkpoint: minutes)

Writes scores.csv, the table of README.md, and the figure. A run whose checkpoint was evaluated before is not again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dba3c import games
from dba3c.environments.atari_protocols import protocol_name
from dba3c.runs.folder import RunFolder
from dba3c.studies.curve import Curve, load_curve
from dba3c.studies.page import made_by, markdown, processors, renew, rows_of, write_rows
from dba3c.studies.statistics import (
    Estimate,
    Floats,
    Statistic,
    bootstrap_interval,
    human_normalised,
    interquartile_mean,
)
from dba3c.studies.study import DBA3C_SCORES

HERE = Path(__file__).resolve().parent
SCORES = HERE / "scores.csv"
PPO_SCORES = {"ALE/Assault-v5": 4_972.0, "ALE/StarGunner-v5": 32_689.0}
"""Of its paper (arXiv 1707.06347, table 6; 10 M agent steps, sticky actions off), where DBA3C published none."""
GOALS = {env_id: PPO_SCORES[env_id] if score is None else score for env_id, score in DBA3C_SCORES.items()}
STICKY_GAMES = ("ALE/Breakout-v5", "ALE/Pong-v5")
"""Those that are played with sticky actions (protocol v5), too, in folders of their own."""
STICKY = "-sticky"
RECIPE = "actor-critic, images normalised"
"""Of the preset as it is."""
PROTOCOL = "v4-no-sticky"
"""Of all others, and of the aggregate."""
EVALUATED_GAMES = 30
CPU_HOURS, MEAN = "progress/cpu_hours", "score/mean"
MEAN_OF_GAMES = 50
"""In a mean score; before so many were played it is of fewer."""
KEY = ("game", "seed", "protocol", "agent_steps", "core_hours")
"""Of a checkpoint, in scores.csv."""


def name_of(env_id: str) -> str:
    """Of the game: its folder's."""
    return env_id.removeprefix("ALE/").removesuffix("-v5")


class Trained(NamedTuple):
    """A committed run."""

    folder: Path
    game: str
    seed: int
    curve: Curve

    @property
    def env_id(self) -> str:
        return f"ALE/{self.game}-v5"

    @property
    def recipe(self) -> str:
        """What learned: the preset `atari` was PPO before, at first with images as they are."""
        algorithm = {"actor_critic": "actor-critic", "ppo": "PPO"}[self.curve.config["algorithm"]["algorithm"]]
        normalises = self.curve.config["environment"]["normalize_observations"]
        return f"{algorithm}, {'images normalised' if normalises else 'images 0 to 1'}"

    @property
    def line(self) -> NDArray[np.float64]:
        """[2, N]: core-hours and the mean score, where it is one of enough games."""
        known = self.curve.column("progress/games") >= MEAN_OF_GAMES
        return np.stack([self.curve.column(CPU_HOURS)[known], self.curve.column(MEAN)[known]])

    @property
    def core_hours_to_goal(self) -> float | None:
        row = self.curve.reached(GOALS[self.env_id])
        return None if row is None else float(self.curve.column(CPU_HOURS)[row])

    def normalised(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """[T]: human-normalised scores at so many core-hours [T]; a run that ended stays at its last score."""
        scores = np.interp(hours, *self.line).tolist()
        return np.array([human_normalised(self.env_id, score) for score in scores], dtype=np.float64)


def trained(folder: Path = HERE, of: str = "") -> dict[str, list[Trained]]:
    """Env id → its runs by seed, in the order of `GOALS`; a game without any is not in it. of: "" or `STICKY`."""
    found = {}
    for env_id in GOALS:
        name = name_of(env_id)
        runs = [
            Trained(path, name, int(path.name.removeprefix("seed-")), load_curve(path))
            for path in sorted((folder / f"{name}{of}").glob("seed-*"))
        ]
        if runs:
            found[env_id] = runs
    return found


def evaluated(run: Trained) -> float:
    """The mean of 30 full games with its last checkpoint, actions sampled; all of them stay beside it."""
    evaluation = games.evaluate(run.folder, EVALUATED_GAMES, actions="sampled")
    told = json.dumps(dataclasses.asdict(evaluation), indent=1, allow_nan=False)
    (run.folder / "evaluation_sampled.json").write_text(told + "\n", encoding="utf-8")
    return evaluation.summary.mean


def row_of(run: Trained, before: Mapping[tuple[str, ...], str]) -> dict[str, str]:
    """A line of scores.csv. `before`: its KEY → the evaluated score that it has already."""
    config = RunFolder.open(run.folder).train_config()
    row = {
        "game": run.game,
        "seed": str(run.seed),
        "protocol": protocol_name(config.environment),
        "agent_steps": f"{run.curve.column('progress/data_points')[-1]:.0f}",
        "core_hours": f"{run.curve.column(CPU_HOURS)[-1]:.3f}",
        "score_online_50": f"{run.line[1, -1]:.2f}",
    }
    known = before.get(tuple(row[column] for column in KEY))
    row["score_evaluated_30"] = known if known is not None else f"{evaluated(run):.2f}"
    to_goal = run.core_hours_to_goal
    row["core_hours_to_target"] = "" if to_goal is None else f"{to_goal:.3f}"
    # whose core-hours they are
    row |= {"processor": processors([run.curve.meta]), "precision": config.network.precision}
    source = run.curve.meta["lives"][-1]["source"]
    row |= {"recipe": run.recipe, "commit": source["commit"][:8] + (" dirty" if source["dirty"] else "")}
    return row


def table(rows: list[dict[str, str]]) -> str:
    """A line for each run, and for each game that has none."""
    columns = (
        "game", "goal", "protocol", "seed", "recipe", "core-hours", "million agent steps", "mean of the last 50 games",
        "30 full games", "human-normalised", "core-hours to the goal", "computed by",
    )  # fmt: skip
    lines: list[tuple[str, ...]] = []
    for env_id, goal in GOALS.items():
        name = name_of(env_id)
        its = [row for row in rows if row["game"] == name]
        for row in its:
            score = float(row["score_evaluated_30"])
            human = human_normalised(env_id, score)
            lines.append(
                (
                    name, f"{goal:,.0f}", row["protocol"], row["seed"], row["recipe"],
                    f"{float(row['core_hours']):.2f}", f"{int(row['agent_steps']) / 1e6:.2f}",
                    f"{float(row['score_online_50']):,.1f}", f"{score:,.1f}", "" if human is None else f"{human:.0%}",
                    f"{row['core_hours_to_target'] or 'not reached'}", f"{row['processor']}, {row['precision']}",
                )
            )  # fmt: skip
        if not its:
            lines.append((name, f"{goal:,.0f}", "not run yet", *[""] * (len(columns) - 3)))
    return markdown(columns, lines)


def over_games(scores: Sequence[Sequence[float]], statistic: Statistic = interquartile_mean) -> Estimate:
    """The statistic over all runs of all games, with its stratified bootstrap: each game's seeds are drawn anew among
    themselves (Agarwal et al. 2021, arXiv 2108.13264, section 4).

    Args:
        scores: of each game its seeds' normalised scores, at least two.

    Raises:
        ValueError: no game, or one with fewer than two seeds.
    """
    if not scores or min(map(len, scores)) < 2:
        raise ValueError("seeds are drawn anew within each game: every game needs two")

    def of_all(*games: Floats, axis: int) -> Floats:
        return statistic(np.concatenate(games, axis=axis), axis=axis)

    games = tuple(np.asarray(seeds, dtype=np.float64) for seeds in scores)
    low, high = bootstrap_interval(of_all, *games)
    every = np.concatenate(games)
    return Estimate(float(of_all(*games, axis=0)), float(low), float(high), tuple(every), every.size)


def aggregate(rows: list[dict[str, str]]) -> str:
    """The IQM of the human-normalised scores with its interval, once each game has two seeds; else why not."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        human = human_normalised(f"ALE/{row['game']}-v5", float(row["score_evaluated_30"]))
        if human is not None and row["protocol"] == PROTOCOL:
            scores.setdefault(row["game"], []).append(human)
    if len(scores) < len(GOALS) or min(map(len, scores.values())) < 2:
        return f"no aggregate: {len(scores)} of {len(GOALS)} games have a run, and each needs two"
    return f"IQM of human-normalised scores: {over_games(list(scores.values()))}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = [run for of in ("", STICKY) for runs in trained(of=of).values() for run in runs]
    before = {tuple(row[column] for column in KEY): row["score_evaluated_30"] for row in rows_of(SCORES)}
    rows = [row_of(run, before) for run in found]
    write_rows(SCORES, rows)
    lives = [run.curve.meta["lives"][-1] for run in found]
    renew(HERE / "README.md", made_by(max(lives, key=lambda life: life["started_s"])), table(rows))
    print(aggregate(rows))
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
