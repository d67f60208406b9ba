"""Redraw the figures from the curves beside this file: ``python results/football/plot.py``."""

from pathlib import Path

from dba3c.studies.curve import load_curve
from dba3c.studies.learning_curves import plot_learning_curves

HERE = Path(__file__).parent

if __name__ == "__main__":
    curves = [load_curve(folder) for folder in sorted(HERE.glob("seed_*"))]
    label = "PPO, 2 workers × 8 environments"
    for name, x in (("learning_curve", "frames"), ("learning_curve_cpu_hours", "progress/cpu_hours")):
        plot_learning_curves({label: curves}, HERE / f"{name}.png", x=x, goal=0.9)
