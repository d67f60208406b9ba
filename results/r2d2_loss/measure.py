"""R2D2 with the squared error averaged over time, as it was, and summed over time, as SEED RL has it.

    python results/r2d2_loss/measure.py BEFORE          (20 minutes on 2 idle cores; runs that are there are kept)

BEFORE: a checkout of commit dba4a13, the last one with the mean (``git worktree add BEFORE dba4a13``). Both train by
their own preset ``r2d2``, made smaller by the same options. Writes a folder of curves for each run, and the figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dba3c.studies.curve import downsample

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1)
SMALLER = "--actors 1 --envs-per-actor 16 --memory-size 64 --dueling-size 64 --replay-start 4000 --replay-batch 32"
SMALLER += " --replay-ratio 8 --target-every-steps 100 --track"
TASKS = {
    "remember": "--total-frames 60000 --unroll-length 20 --burn-in 10",
    "balance_blind": "--total-frames 100000 --unroll-length 40 --burn-in 20",
}


def train(source: Path, task: str, seed: int, run: Path) -> None:
    """One run with the code of `source`, of low priority."""
    words = ["train", f"tasks:{task}", "--preset", "r2d2", "--seed", str(seed), "--run-dir", str(run)]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{HERE}"}
    command = ["nice", "-n", "19", sys.executable, "-m", "launch", *words, *SMALLER.split(), *TASKS[task].split()]
    subprocess.run(command, check=True, cwd=run.parent, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a checkout of the code before")
    sources = {"mean": parser.parse_args().source.resolve(), "sum": HERE.parents[1]}
    for seed in SEEDS:
        for task in TASKS:
            for name, source in sources.items():
                kept = HERE / task / f"{name}-{seed}"
                if (kept / "curve.csv").exists():
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    train(source, task, seed, Path(folder) / "run")
                    downsample(Path(folder) / "run", kept, rows=60, every_s=2.0)
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
