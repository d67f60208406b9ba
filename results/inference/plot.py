"""Draws observations/s against batch size, from the batch_size_DEVICE.csv that `measure.py` wrote."""

from __future__ import annotations

from pathlib import Path

from dba3c.benchmarks import batch_size

HERE = Path(__file__).resolve().parent


def main() -> None:
    for data in HERE.glob("batch_size_*.csv"):
        batch_size.draw(batch_size.read(data), data.with_suffix(""))


if __name__ == "__main__":
    main()
