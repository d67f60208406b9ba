"""Redraw the figures from the curve.csv beside this file: ``python results/breakout_2cores/plot.py``."""

from pathlib import Path

from dba3c.studies.curve import load_curve
from dba3c.studies.learning_curves import plot_learning_curves

HERE = Path(__file__).parent

if __name__ == "__main__":
    curve = load_curve(HERE)
    label = "2 servers, 2 workers, small network"
    for name, x in (("learning_curve", "progress/cpu_hours"), ("learning_curve_frames", "frames")):
        plot_learning_curves({label: [curve]}, HERE / f"{name}.png", x=x, goal=300.0)
