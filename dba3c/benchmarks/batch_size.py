"""Observations per second that a policy answers, by batch size: ``python -m dba3c.benchmarks.batch_size``.

One call of the learner's policy for each batch, as the inference service makes it: frames to the device, the network,
actions sampled, actions and log-probabilities back. Atari's observations; no links, no environments. All points are
measured in turn, ``repeats`` times; medians are printed, and written with a figure when asked.
"""

import csv
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import tyro
from gymnasium import spaces

from dba3c.algorithms.policies import ActorCriticPolicy, Asked
from dba3c.assembly.model import Spaces, build_model
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.errors import UserError
from dba3c.studies.figures import LINES, PALETTE, finish, new_figure, save
from dba3c.studies.page import write_rows

SPACES = Spaces(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4))
_WARM_UP_CALLS = 3

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    networks: tuple[str, ...] = ("small", "nature", "resnet")
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    device: str = "cpu"
    """ "cpu" or "cuda"."""
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    threads: int = 1
    """Of torch on the CPU; a run's processes have one each."""
    seconds: float = 0.5
    """Least time of each point in each repeat."""
    repeats: int = 3
    output: Path | None = None
    """Write OUTPUT.csv, OUTPUT.png and OUTPUT.svg."""


class Row(NamedTuple):
    """One point."""

    network: str
    precision: str
    device: str
    batch: int
    observations_per_s: float
    """Median of the repeats."""
    lowest: float
    highest: float


def policy_of(network: str, precision: Precision, device: str) -> ActorCriticPolicy:
    """A learner's policy with fresh parameters."""
    config = TrainConfig(network=NetworkConfig(network=network, precision=precision, device=device))
    return ActorCriticPolicy(build_model(config, SPACES).network, seed=0)


def rate(policy: ActorCriticPolicy, batch: int, seconds: float) -> float:
    """Observations per second for at least so long."""
    frames = np.random.default_rng(0).integers(0, 256, (batch, 4, 84, 84), dtype=np.uint8)
    asked = Asked(frames, policy.initial_state(batch), np.zeros(batch, np.float32), np.arange(batch))
    for _ in range(_WARM_UP_CALLS):
        policy.act(asked)
    calls, began_s = 0, time.perf_counter()
    while (spent_s := time.perf_counter() - began_s) < seconds:
        policy.act(asked)  # its answer lies in the CPU's memory: a GPU has ended
        calls += 1
    return calls * batch / spent_s


def run(arguments: Arguments) -> list[Row]:
    """All points; written when asked. Raises UserError when there is no such device."""
    torch.set_num_threads(arguments.threads)
    kinds = [(network, precision) for network in arguments.networks for precision in arguments.precisions]
    policies = {kind: policy_of(*kind, arguments.device) for kind in kinds}
    rates: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(arguments.repeats):
        for kind, policy in policies.items():
            for batch in arguments.batches:
                rates.setdefault((*kind, batch), []).append(rate(policy, batch, arguments.seconds))
    rows = [
        Row(network, precision, arguments.device, batch, statistics.median(found), min(found), max(found))
        for (network, precision, batch), found in rates.items()
    ]
    if arguments.output is not None:
        told = [row._asdict() | {name: f"{getattr(row, name):.6g}" for name in Row._fields[4:]} for row in rows]
        write_rows(arguments.output.with_suffix(".csv"), told)
        draw(rows, arguments.output)
    return rows


def read(path: Path) -> list[Row]:
    """What ``run`` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(network, precision, device, int(batch), float(median), float(lowest), float(highest))
            for network, precision, device, batch, median, lowest, highest in list(csv.reader(file))[1:]
        ]


def draw(rows: list[Row], path: Path) -> list[Path]:
    """Observations/s against batch size, a line for each network and precision."""
    figure, axes = new_figure()
    networks, precisions = (list(dict.fromkeys(row[column] for row in rows)) for column in (0, 1))
    for network, precision in dict.fromkeys(row[:2] for row in rows):
        mine = [row for row in rows if row[:2] == (network, precision)]
        axes.plot(
            [row.batch for row in mine],
            [row.observations_per_s for row in mine],
            LINES[precisions.index(precision) % len(LINES)],
            marker="o",
            markersize=4,
            color=PALETTE[networks.index(network) % len(PALETTE)],
            label=f"{network}, {precision}",
        )
    x_name, batches = f"observations in a batch ({rows[0].device})", [row.batch for row in rows]
    finish(axes, x_name, "observations/s", batches, log=True, handlelength=4)
    return save(figure, path)


def main() -> None:
    """Print the table."""
    arguments = tyro.cli(Arguments, description=__doc__)
    try:
        rows = run(arguments)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"{'network':<10}{'precision':<12}{'batch':>6}{'observations/s':>16}   lowest … highest ({arguments.device})")
    for row in rows:
        print(f"{row.network:<10}{row.precision:<12}{row.batch:>6}{row.observations_per_s:>16,.0f}", end="")
        print(f"   {row.lowest:,.0f} … {row.highest:,.0f}")


if __name__ == "__main__":
    main()
