"""Redraw the figure from the curves beside this file: ``python results/vizdoom/plot.py``."""

from pathlib import Path

from dba3c.studies.curve import load_curve
from dba3c.studies.learning_curves import plot_learning_curves

HERE = Path(__file__).parent
LABELS = {"small": "small network, 1 worker × 16 environments", "small_lstm": "small network with LSTM"}

if __name__ == "__main__":
    curves = {label: [load_curve(HERE / name)] for name, label in LABELS.items() if (HERE / name).is_dir()}
    plot_learning_curves(curves, HERE / "learning_curve.png", x="frames", goal=75.0)
