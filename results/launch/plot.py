"""Redraw the figure from launch.json: ``python results/launch/plot.py``."""

import json
from pathlib import Path

from launch.benchmarks.report import draw

HERE = Path(__file__).parent

if __name__ == "__main__":
    draw(json.loads((HERE / "launch.json").read_text(encoding="utf-8"))["overhead"], HERE / "overhead.png")
