"""Redraw the figure from the curve beside this file: ``python results/mujoco/plot.py``."""

from pathlib import Path

from dba3c.studies.curve import load_curve
from dba3c.studies.learning_curves import plot_learning_curves

HERE = Path(__file__).parent

if __name__ == "__main__":
    curves = {"PPO, 2 workers × 8 environments": [load_curve(HERE / "seed_0")]}
    plot_learning_curves(curves, HERE / "learning_curve.png", x="frames")
