"""The inference service's own cost: ``python results/inference/measure.py``, about 6 minutes on an idle machine.

Measures the service alone at 1, 2, 4, 8 actors; one thread for inference and learning, or one each; and what the
policy's network answers by batch size. Writes inference.json, batch_size_cpu.csv and its figure, and the tables of
README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dba3c.benchmarks import batch_size, inference
from dba3c.metrics.reader import RunReader
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import facts, made_by, markdown, renew

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from architectures.costs import cost_of

HERE = Path(__file__).resolve().parent
SERVICE_S = 4.0
"""Of each point of the service, without it and with it."""
START_S, TRAINING_S = 20.0, 20.0
"""Of each training run: first that are not measured, then that are."""
NETWORK = "nature"
"""Of the training runs."""


def main() -> None:
    """Measure, write."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    batches = batch_size.run(batch_size.Arguments(output=HERE / "batch_size_cpu"))
    service = inference.run(inference.Arguments(seconds=SERVICE_S))
    threads = {thread: train(thread) for thread in ("shared", "own")}
    found: dict[str, Any] = {
        "service": [row._asdict() for row in service],
        "inference_thread": threads,
        "batch_size": [row._asdict() for row in batches],
        **facts("python results/inference/measure.py"),
    }
    (HERE / "inference.json").write_text(json.dumps(found, indent=1) + "\n")
    print(*tables(found), sep="\n\n")
    renew(HERE / "README.md", made_by(found), *tables(found))


def train(thread: str) -> dict[str, float]:
    """A learner and two actors train Breakout; what they did in the last seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        words = (
            *("train", "ALE/Breakout-v5", "--mode", "central", "--network", NETWORK, "--inference-thread"),
            *(thread, "--actors", "2", "--envs-per-actor", "16", "--unroll-length", "20", "--batch-unrolls", "16"),
            *("--max-hours", f"{(START_S + TRAINING_S) / 3600:.6f}", "--run-dir", str(folder)),
        )
        with (Path(temporary) / "out.log").open("w") as log:
            command = [sys.executable, "-m", "launch", *words]
            subprocess.run(command, check=True, timeout=300, stdout=log, stderr=log, env=os.environ)
        cost = cost_of(folder, "central", NETWORK, TRAINING_S)
        found = [record for record in RunReader(RunFolder.open(folder)).poll() if "inference_batch" in record]
    late = [record for record in found if record["time_s"] > found[-1]["time_s"] - TRAINING_S]
    names = ("inference_batch", "inference_latency_p50_ms", "inference_latency_p99_ms")
    numbers = {name: statistics.median(record[name] for record in late) for name in names}
    costs = asdict(cost)
    return {
        **{name: costs[name] for name in ("agent_steps_per_s", "core_s_per_million_frames", "lag_p50", "lag_p99")},
        **numbers,
    }


def tables(found: dict[str, Any]) -> list[str]:
    """Those of the page: the service, batch sizes, threads, and the one that was measured once."""
    columns = (
        "environment", "actors", "steps/s", "bare steps/s", "service µs/step", "actor adds µs/step",
        "turns/message", "batch", "latency p50 ms", "p99 ms",
    )  # fmt: skip
    forms = ("", "", ",.0f", ",.0f", ".1f", ".1f", ".2f", ".0f", ".2f", ".2f")
    served = [cells(list(row.values()), forms) for row in found["service"]]
    batches = sorted({row["batch"] for row in found["batch_size"]})
    rates: dict[str, list[str]] = {}
    for row in found["batch_size"]:
        rates.setdefault(f"{row['network']}, {row['precision']}", []).append(f"{row['observations_per_s']:,.0f}")
    threads = [
        (name, *cells([row[key] for key in THREAD], THREAD.values())) for name, row in found["inference_thread"].items()
    ]
    return [
        markdown(columns, served),
        markdown(["network", *map(str, batches)], [[name, *row] for name, row in rates.items()]),
        markdown(
            ("thread", "agent steps/s", "core-seconds per million frames", "batch", "latency p50 ms", "p99 ms",
             "policy lag p50", "p99"), threads,
        ),
        markdown(("transport", "actor µs/step", "learner µs/step", "both", "round trip µs"), transports()),
    ]  # fmt: skip


def transports() -> list[tuple[str, ...]]:
    """What bytes cost over each of three ways, of transports.json, whose program is gone."""
    found = json.loads((HERE / "transports.json").read_text(encoding="utf-8"))["transports"]
    return [
        (
            name, *cells([row["actor_us"], row["learner_us"], row["actor_us"] + row["learner_us"]], (".2f",) * 3),
            f"{row['round_trip_us']:.0f}",
        )
        for name, row in found.items()
    ]  # fmt: skip


THREAD = {
    "agent_steps_per_s": ",.0f",
    "core_s_per_million_frames": ",.0f",
    "inference_batch": ".0f",
    "inference_latency_p50_ms": ".1f",
    "inference_latency_p99_ms": ".1f",
    "lag_p50": "g",
    "lag_p99": "g",
}


def cells(values: Sequence[Any], forms: Iterable[str]) -> list[str]:
    return [f"{value:{form}}" for value, form in zip(values, forms, strict=True)]


if __name__ == "__main__":
    main()
