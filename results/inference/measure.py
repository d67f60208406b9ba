"""The inference service's own cost: ``python results/inference/measure.py``, about 6 minutes on an idle machine.

Measures the service alone at 1, 2, 4, 8 actors; one thread for inference and learning, or one each; and what the
policy's network answers by batch size. Writes inference.json, batch_size_DEVICE.csv and its figure, and the tables of
README.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from dba3c.benchmarks import batch_size, inference
from dba3c.metrics.reader import RunReader
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import facts, made_by, markdown, renew

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from architectures.costs import cost_of

HERE = Path(__file__).resolve().parent
START_S = 20.0
"""Of each training run that are not measured."""


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    seconds: float = 4.0
    """Of each point of the service, without it and with it."""
    training_seconds: float = 20.0
    """Of each training run."""
    actors: tuple[int, ...] = (1, 2, 4, 8)
    network: str = "nature"
    """Of the training runs."""
    batch_seconds: float = 0.5
    """Of each point by batch size, three times."""
    device: str = "cpu"
    """Of the points by batch size."""
    into: Path = HERE


def main() -> None:
    """Measure, write."""
    arguments = tyro.cli(Arguments, description=__doc__)
    arguments.into.mkdir(parents=True, exist_ok=True)
    into, device, seconds = arguments.into / f"batch_size_{arguments.device}", arguments.device, arguments.batch_seconds
    batches = batch_size.run(batch_size.Arguments(device=device, seconds=seconds, output=into))
    service = inference.run(inference.Arguments(actors=arguments.actors, seconds=arguments.seconds))
    threads = {thread: train(thread, arguments) for thread in ("shared", "own")}
    found: dict[str, Any] = {
        "service": [row._asdict() for row in service],
        "inference_thread": threads,
        "batch_size": [row._asdict() for row in batches],
        "arguments": {name: str(value) for name, value in asdict(arguments).items() if name != "into"},
        **facts("python results/inference/measure.py"),
    }
    (arguments.into / "inference.json").write_text(json.dumps(found, indent=1) + "\n")
    print(*tables(found), sep="\n\n")
    if arguments.into == HERE:
        renew(HERE / "README.md", made_by(found), *tables(found))


def train(thread: str, arguments: Arguments) -> dict[str, float]:
    """A learner and two actors train Breakout; what they did in the last seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        words = (
            *("train", "ALE/Breakout-v5", "--mode", "central", "--network", arguments.network, "--inference-thread"),
            *(thread, "--actors", "2", "--envs-per-actor", "16", "--unroll-length", "20", "--batch-unrolls", "16"),
            *("--max-hours", f"{(START_S + arguments.training_seconds) / 3600:.6f}", "--run-dir", str(folder)),
        )
        with (Path(temporary) / "out.log").open("w") as log:
            command = [sys.executable, "-m", "launch", *words]
            subprocess.run(command, check=True, timeout=300, stdout=log, stderr=log, env=os.environ)
        cost = cost_of(folder, "central", arguments.network, arguments.training_seconds)
        found = [record for record in RunReader(RunFolder.open(folder)).poll() if "inference_batch" in record]
    late = [record for record in found if record["time_s"] > found[-1]["time_s"] - arguments.training_seconds]
    names = ("inference_batch", "inference_latency_p50_ms", "inference_latency_p99_ms")
    numbers = {name: statistics.median(record[name] for record in late) for name in names}
    costs = asdict(cost)
    return {
        **{name: costs[name] for name in ("agent_steps_per_s", "core_s_per_million_frames", "lag_p50", "lag_p99")},
        **numbers,
    }


def tables(found: dict[str, Any]) -> list[str]:
    """Those of the page: the service, batch sizes, threads."""
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
