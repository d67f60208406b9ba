"""Draws both studies' figures from the runs beside it: python results/servers_and_backups/plot.py."""

from pathlib import Path

from dba3c.studies.report import draw
from dba3c.studies.results import read_results

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    for name in ("servers", "backups"):
        draw(read_results(HERE / name), HERE / name)
