"""The inference service's own cost: ``python results/inference/measure.py``, about 6 minutes on an idle machine.

Three tables, written here as inference.json and README.md: the service alone at 1, 2, 4, 8 actors; sockets and shared
memory between two processes; one thread for inference and learning, or one each. And a figure: what the policy's
network answers by batch size, its data as batch_size_DEVICE.csv.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from dba3c.benchmarks import batch_size, inference, transports
from dba3c.metrics.reader import RunReader
from dba3c.runs.host_facts import git_commit, host, versions
from dba3c.runs.run_folder import RunFolder
from dba3c.studies.architectures import cost_of

HERE = Path(__file__).parent
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
    moved = transports.run(transports.Arguments(seconds=1.0, repeats=3))
    threads = {thread: train(thread, arguments) for thread in ("shared", "own")}
    found: dict[str, Any] = {
        "service": [row._asdict() for row in service],
        "transports": moved,
        "inference_thread": threads,
        "batch_size": [row._asdict() for row in batches],
        "arguments": {name: str(value) for name, value in asdict(arguments).items() if name != "into"},
        "host": host(),
        "versions": versions(),
        "source": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    (arguments.into / "inference.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.into / "README.md").write_text(readme(found), encoding="utf-8")
    print(readme(found))


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


def readme(found: dict[str, Any]) -> str:
    """The page: README.in.md with its tables filled in."""
    moved = found["transports"]
    ends = ("actor_us", "learner_us")
    places = {
        "SERVICE_TABLE": "\n".join(map(service_row, found["service"])),
        "DEAREST": f"{max(row['service_us'] for row in found['service']):.1f}",
        "SAME_WORK": "{:.1f} to {:.1f}".format(*same_work(found["service"])),
        "BATCH_FIGURE": f"batch_size_{found['arguments']['device']}.png",
        "BATCH_TABLE": batch_table(found["batch_size"]),
        "TRANSPORT_TABLE": "\n".join(transport_row(name, row) for name, row in moved.items()),
        "SAVED": f"{sum(moved['tcp'][end] - moved['shared memory'][end] for end in ends):.2f}",
        "THREAD_TABLE": "\n".join(thread_row(name, row) for name, row in found["inference_thread"].items()),
        "MACHINE": machine_line(found),
    }
    text = (HERE / "README.in.md").read_text(encoding="utf-8")
    for name, value in places.items():
        text = text.replace(name, value)
    return text


def machine_line(found: dict[str, Any]) -> str:
    """Where, with what and when."""
    machine, source, known = found["host"], found["source"], found["versions"]
    commit = str(source.get("commit", "unknown"))[:12] + (" with local changes" if source.get("dirty") else "")
    where = f"{machine['cores']} cores of {machine['processor']}"
    return f"{found['date']}, {where}, Python {known['python']}, torch {known['torch']}, commit {commit}."


def service_row(row: dict[str, Any]) -> str:
    """One point of the service."""
    return (
        f"| {row['environment']} | {row['actors']} | {row['steps_per_s']:,.0f} | {row['bare_steps_per_s']:,.0f} "
        f"| {row['service_us']:.1f} | {row['same_work']:.1f} | {row['actor_adds_us']:.1f} "
        f"| {row['turns_per_message']:.2f} | {row['batch']:.0f} "
        f"| {row['latency_p50_ms']:.2f} | {row['latency_p99_ms']:.2f} |"
    )


def same_work(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """How many times as dear the control's work became beside emulators: least, most."""
    factors = [row["same_work"] for row in rows if row["environment"] != "blank"]
    return min(factors), max(factors)


def batch_table(rows: list[dict[str, Any]]) -> str:
    """Observations/s: a line for each network and precision, a column for each batch size."""
    batches = sorted({row["batch"] for row in rows})
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        rates.setdefault(f"{row['network']}, {row['precision']}", {})[row["batch"]] = row["observations_per_s"]
    lines = [f"| network | {' | '.join(map(str, batches))} |", "|---" * (len(batches) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{mine[batch]:,.0f}' for batch in batches)} |" for name, mine in rates.items()]
    return "\n".join(lines)


def transport_row(name: str, row: dict[str, float]) -> str:
    """One transport."""
    both = row["actor_us"] + row["learner_us"]
    return f"| {name} | {row['actor_us']:.2f} | {row['learner_us']:.2f} | {both:.2f} | {row['round_trip_us']:.0f} |"


def thread_row(name: str, row: dict[str, float]) -> str:
    """One training run."""
    return (
        f"| {name} | {row['agent_steps_per_s']:,.0f} | {row['core_s_per_million_frames']:,.0f} "
        f"| {row['inference_batch']:.0f} | {row['inference_latency_p50_ms']:.1f} "
        f"| {row['inference_latency_p99_ms']:.1f} | {row['lag_p50']:g} | {row['lag_p99']:g} |"
    )


if __name__ == "__main__":
    main()
