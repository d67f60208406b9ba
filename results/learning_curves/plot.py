"""Draws the live mean score of all seeds from the runs beside it: python results/learning_curves/plot.py."""

from pathlib import Path

from dba3c.studies.learning_curves import plot_learning_curves
from dba3c.studies.results import read_results

HERE = Path(__file__).resolve().parent

if __name__ == "__main__" and (HERE / "study.json").exists():
    for result in read_results(HERE).points:
        label = "CartPole, 2 workers, 2 servers"
        plot_learning_curves({label: result.curves}, HERE / "learning_curves", statistic="mean", goal=475.0)
