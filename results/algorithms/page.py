"""The table of README.md, from the runs beside it: `python results/algorithms/page.py`."""

from __future__ import annotations

from pathlib import Path

from dba3c.studies.curve import Curve, load_curve
from dba3c.studies.page import made_by, markdown, processors, renew
from dba3c.studies.results import time_to_score
from dba3c.studies.statistics import estimate

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "recipe", "environment", "seeds", "goal", "thousand frames to the goal, median",
    "core-minutes to the goal, median", "best mean of 50 games, IQM", "at the end, IQM", "computed by",
)  # fmt: skip
RECIPES = {"ppo-LunarLander": "long PPO", "r2d2-Pong": "r2d2, small updates"}
"""Those that are no preset."""
GOALS = {
    "CartPole-v1": 475.0, "Acrobot-v1": -100.0, "LunarLander-v3": 200.0, "HalfCheetah-v5": 4800.0, "vizdoom/basic": 75.0
}  # fmt: skip
"""Gymnasium's, and a scripted player's; the runs on the first two go on beyond them."""
UNCOUNTED = {("vizdoom/basic", "progress/cpu_hours")}
"""Doom is a process of its own for each game, whose processor time is not in the run's."""


def line(folder: Path, curves: list[Curve]) -> tuple[object, ...]:
    """Of the runs of one preset on one environment."""
    recipe = folder.name.partition("-")[0]
    environment = curves[0].config["environment"]["env_id"]
    goal = GOALS.get(environment)
    units = {"progress/frames": 1e-3, "progress/cpu_hours": 60}
    times = (
        "–" if goal is None or (environment, chart) in UNCOUNTED else time_to_score(curves, goal, chart).times(by)
        for chart, by in units.items()
    )
    best = estimate([float(curve.column("score/best_mean")[-1]) for curve in curves])
    last = estimate([float(curve.column("score/mean")[-1]) for curve in curves])
    return (
        RECIPES.get(folder.name, recipe),
        environment,
        len(curves),
        "–" if goal is None else f"{goal:g}",
        *times,
        best,
        last,
        processors(curve.meta for curve in curves),
    )


def main() -> None:
    folders = sorted({path.parent for path in HERE.glob("*/seed-*")})
    found = {folder: [load_curve(path) for path in sorted(folder.glob("seed-*"))] for folder in folders}
    lives = [life for curves in found.values() for curve in curves for life in curve.meta["lives"]]
    newest = max(lives, key=lambda life: life["started_s"])
    renew(HERE / "README.md", made_by(newest), markdown(COLUMNS, [line(*each) for each in found.items()]))


if __name__ == "__main__":
    main()
