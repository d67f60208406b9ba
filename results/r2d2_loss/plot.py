"""Redraw the figures from the curves beside this file: ``python results/r2d2_loss/plot.py``."""

from pathlib import Path

from dba3c.studies.curve import load_curve
from dba3c.studies.learning_curves import plot_learning_curves

HERE = Path(__file__).resolve().parent
LEGENDS = {"sum": "summed over time, clip 40", "mean": "averaged over time, clip 80"}

if __name__ == "__main__":
    for task in ("remember", "balance_blind"):
        runs = {legend: sorted(HERE.glob(f"{task}/{name}-*")) for name, legend in LEGENDS.items()}
        curves = {legend: [load_curve(run) for run in found] for legend, found in runs.items()}
        plot_learning_curves(curves, HERE / task, statistic="mean")
