"""The inference service's own cost: ``python results/inference/measure.py``, about 5 minutes on an idle machine.

Measures the service alone at 1, 2, 4, 8 actors, and what the policy's network answers by batch size. Writes
inference.json, batch_size_cpu.csv and its figure, and their tables in README.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dba3c.benchmarks import batch_size, inference
from dba3c.studies.page import facts, made_by, markdown, renew

HERE = Path(__file__).resolve().parent
SERVICE_S = 4.0
"""Of each point of the service, without it and with it."""


def main() -> None:
    """Measure, write."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    batch_size.run(batch_size.Arguments(output=HERE / "batch_size_cpu"))
    service = inference.run(inference.Arguments(seconds=SERVICE_S))
    found: dict[str, Any] = {
        "service": [row._asdict() for row in service],
        **facts("python results/inference/measure.py"),
    }
    (HERE / "inference.json").write_text(json.dumps(found, indent=1) + "\n")
    print(*tables(found), sep="\n\n")
    renew(HERE / "README.md", made_by(found), *tables(found))


def tables(found: dict[str, Any]) -> list[str]:
    """Those of the page: the service, batch sizes."""
    columns = (
        "environment", "actors", "steps/s", "bare steps/s", "service µs/step", "actor adds µs/step",
        "turns/message", "batch", "latency p50 ms", "p99 ms",
    )  # fmt: skip
    forms = ("", "", ",.0f", ",.0f", ".1f", ".1f", ".2f", ".0f", ".2f", ".2f")
    served = [[f"{value:{form}}" for value, form in zip(row.values(), forms, strict=True)] for row in found["service"]]
    points = batch_size.read(HERE / "batch_size_cpu.csv")
    batches = sorted({row.batch for row in points})
    rates: dict[str, list[str]] = {}
    for row in points:
        rates.setdefault(f"{row.network}, {row.precision}", []).append(f"{row.observations_per_s:,.0f}")
    return [
        markdown(columns, served),
        markdown(["network", *map(str, batches)], [[name, *row] for name, row in rates.items()]),
    ]


if __name__ == "__main__":
    main()
