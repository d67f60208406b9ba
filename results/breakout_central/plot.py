"""Redraw the figures from the curve.csv here and of the main job: ``python results/breakout_central/plot.py``."""

from pathlib import Path

from dba3c.studies.curve import load_curve
from dba3c.studies.learning_curves import plot_learning_curves

HERE = Path(__file__).parent

if __name__ == "__main__":
    runs = {"worker + servers, actor-critic": HERE.parent / "breakout_2cores", "central inference, V-trace": HERE}
    curves = {label: [load_curve(folder)] for label, folder in runs.items()}
    for name, x in (("learning_curve", "progress/cpu_hours"), ("learning_curve_frames", "frames")):
        plot_learning_curves(curves, HERE / f"{name}.png", x=x, goal=300.0)
