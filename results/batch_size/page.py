"""The tables of README.md and of ../breakout_lanes/README.md, from the runs: `python results/batch_size/page.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dba3c.studies.curve import Curve, load_curve
from dba3c.studies.page import markdown, renew

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent
GOALS = (100.0, 200.0, 300.0)
SIZES = (
    (160, "n-step actor-critic, 5 steps, RMSprop 7e-4", "breakout_lanes/nstep/seed-0", ""),
    (160, "the same, another seed", "breakout_lanes/nstep/seed-1", "a slower machine"),
    (320, "V-trace, 448 environments of 14 actors, 10 steps, RMSprop 1e-3 ([on a GPU](../gpu/))", "gpu/breakout", ""),
    (480, "n-step, 96 environments × 5 steps, RMSprop 1.2e-3", "batch_size/nstep-rmsprop-480-0.0012/seed-0", ""),
    (1120, "n-step, 224 environments × 5 steps, RMSprop 1.9e-3", "batch_size/nstep-rmsprop-1120-0.0019/seed-0", ""),
    (1200, "n-step, 240 environments × 5 steps, RMSprop 1.9e-3", "batch_size/nstep-rmsprop-1200-0.0019/seed-0", ""),
    (1200, "the same, another seed ([there](../gpu/))", "gpu/breakout_16_lanes", "16 lanes on 16 cores"),
    (1920, "n-step, 384 environments × 5 steps, RMSprop 2.4e-3", "batch_size/nstep-rmsprop-1920-0.0024/seed-0", ""),
    (
        3600, "n-step, 720 environments × 5 steps, RMSprop 3.3e-3 (`--preset breakout_cluster`)",
        "batch_size/nstep-rmsprop-3600-0.0033/seed-0", "",
    ),
    (3600, "the same, another seed", "batch_size/nstep-rmsprop-3600-0.0033/seed-1", ""),
    (
        2880, "PPO, 720 environments × 32 steps, 3 epochs of 8 minibatches, Adam 1e-3 (`breakout_cluster` until "
        "26 November)", "batch_size/ppo-adam-2880-0.001/seed-0", "",
    ),
)  # fmt: skip
"""Samples of an update, the recipe, the run, how it ran otherwise than on two cores."""
FIVE_SEEDS = (
    "AMD EPYC, shared", "Intel Xeon, shared, resumed",
    "an EPYC without bfloat16 to 0.77, then as seeds 3 and 4, resumed",
    "AMD EPYC with bfloat16, tests beside it", "AMD EPYC with bfloat16, tests beside it",
)  # fmt: skip


def reached(curve: Curve, goal: float, samples: int) -> str:
    """Updates (by their samples: those that train are a little fewer) and agent steps at the goal."""
    row = curve.reached(goal)
    if row is None:
        return "–"
    steps = float(curve.column("progress/data_points")[row])
    return f"{steps / samples:,.0f}, {steps / 1e6:.2f} M"


def largest_fall(curve: Curve, goal: float = GOALS[-1]) -> str:
    """Of the mean of the last games, on the way to the goal."""
    row = curve.reached(goal)
    means = curve.column("score/mean")[: None if row is None else row + 1]
    means = means[np.isfinite(means)]
    before = np.maximum.accumulate(means)
    at = int(np.argmax(before - means))
    return f"{before[at]:.0f} → {means[at]:.0f}"


def at_goal(curve: Curve, chart: str) -> float:
    """The value of a chart at the last goal, which the run has reached."""
    row = curve.reached(GOALS[-1])
    assert row is not None, f"{curve.name} did not reach {GOALS[-1]:g}"
    return float(curve.column(chart)[row])


def sizes() -> str:
    lines = []
    for samples, recipe, folder, how in SIZES:
        curve = load_curve(RESULTS / folder)
        epochs = curve.config["algorithm"].get("ppo_epochs", 1) if recipe.startswith("PPO") else 1
        *before, last = (reached(curve, goal, samples // epochs) for goal in GOALS)  # a step is counted once
        hours = f"{at_goal(curve, 'progress/cpu_hours'):.2f}"
        lines.append(
            (f"{samples:,}", recipe, *before, f"**{last}**", f"{hours}{how and f', {how}'}", largest_fall(curve))
        )
    columns = ("samples an update", "recipe", "to a mean of 100: updates, agent steps", "of 200", "of **300**")
    return markdown((*columns, "core-hours", "largest fall"), lines)


def five_seeds() -> str:
    rows = [("one worker, two lanes", f"breakout_lanes/nstep/seed-{seed}", how) for seed, how in enumerate(FIVE_SEEDS)]
    lines = []
    for run, folder, how in [*rows, ("two workers, two servers", "breakout_2cores", "AMD EPYC, shared")]:
        curve = load_curve(RESULTS / folder)
        hours, wall = (at_goal(curve, f"progress/{chart}") for chart in ("cpu_hours", "hours"))
        evaluated = RESULTS / folder / "evaluation_sampled.json"
        updates, steps = reached(curve, GOALS[-1], 160).split(", ")
        cells = (f"{run}, seed {curve.config['run']['seed']}", f"{hours:.2f}", steps, updates, f"{wall:.2f}")
        lines.append((*cells, largest_fall(curve), how, told(evaluated) if evaluated.exists() else "–"))
    columns = (
        "run",
        "core-hours to a mean of 300",
        "agent steps",
        "updates (steps / 160)",
        "wall clock, hours",
        "largest fall",
    )
    return markdown((*columns, "processor", "evaluated: 30 full games"), lines)


def told(evaluation: Path) -> str:
    said = json.loads(evaluation.read_text(encoding="utf-8"))["summary"]
    low, high = said["interval_95"]
    return f"mean {said['mean']:.1f}, IQM {said['iqm']:.1f} [{low:.1f}, {high:.1f}], best {said['max']:.0f}"


def main() -> None:
    renew(HERE / "README.md", "", sizes())
    renew(RESULTS / "breakout_lanes" / "README.md", "", five_seeds())


if __name__ == "__main__":
    main()
