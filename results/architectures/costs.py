"""What an architecture costs: agent steps/s, core-seconds for a million frames, and how old the acting weights were.

All numbers are of one stretch at the end of a run, so that starting up and warming up are not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.metrics.reader import Record, whole_run
from dba3c.runs.folder import RunFolder
from dba3c.studies.figures import PALETTE, legend_below, new_figure, save
from dba3c.studies.page import markdown, rows_of
from param_servers.servers.audit import history, read_audit

STEPPING = ("worker", "actor")
"""Roles whose records count agent steps."""
ARCHITECTURES = {
    "sync-servers": "workers + servers",
    "sync-allreduce": "workers + all-reduce",
    "async-servers": "workers + async servers",
    "central": "central inference",
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One run's row of the table."""

    architecture: str
    network: str
    agent_steps_per_s: float
    frames_per_s: float
    updates_per_s: float
    core_s_per_million_frames: float
    """Processor time of servers, workers, learners and actors; not of the monitor."""
    cores_used: float
    lag_p50: float
    """Updates between the weights that acted and those that were updated."""
    lag_p99: float
    seconds: float
    """Of the stretch."""


def cost_of(path: Path, architecture: str, network: str, seconds: float) -> Cost:
    """The numbers of a run's last ``seconds``, or of all that it trained.

    Raises UserError when that was less than half of it.
    """
    run = RunFolder.open(path)
    config = run.train_config()
    by_process: dict[tuple[str, int], list[Record]] = {}
    for record in whole_run(run):
        if record["kind"] in ("step", "server"):
            by_process.setdefault((record["role"], record["rank"]), []).append(record)
    stepping = [found for (role, _), found in by_process.items() if role in STEPPING]
    if not stepping:
        raise UserError(f"{path} has no record of a step")
    # the last window is cut short by the end
    end_s = min(_steps(records)[-1]["time_s"] for records in stepping)
    began_s = max(_steps(records)[0]["time_s"] for records in stepping)
    if end_s - began_s < seconds / 2:
        raise UserError(f"{path} trained for {end_s - began_s:.0f} s, which is less than half of {seconds:g} s")
    seconds = min(seconds, end_s - began_s)
    late = {
        who: [record for record in records if end_s - seconds < record["time_s"] <= end_s]
        for who, records in by_process.items()
    }
    lanes = {"worker": config.environment.lanes}  # each writes windows of its own, at the same time
    stepped = [(_steps(records), lanes.get(role, 1)) for (role, _), records in late.items() if role in STEPPING]
    steps_per_s, frames_per_s = (
        sum(count * _rate(records, name) for records, count in stepped) for name in ("agent_steps", "frames")
    )
    cores = sum(lanes.get(role, 1) * _cores(records) for (role, _), records in late.items())
    committed = sorted((record["time_s"], record["step"]) for records in late.values() for record in records)
    (first_s, first), (last_s, last) = committed[0], committed[-1]
    lag_p50, lag_p99 = _policy_lag(run, config, late)
    return Cost(
        architecture=architecture,
        network=network,
        agent_steps_per_s=round(steps_per_s, 1),
        frames_per_s=round(frames_per_s, 1),
        updates_per_s=round((last - first) / (last_s - first_s), 2),
        core_s_per_million_frames=round(1e6 * cores / frames_per_s, 1),
        cores_used=round(cores, 3),
        lag_p50=round(lag_p50, 2),
        lag_p99=round(lag_p99, 2),
        seconds=round(seconds, 1),
    )


def _steps(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record["kind"] == "step"]


def _rate(records: Sequence[Record], name: str) -> float:
    """Per second of these windows."""
    return float(sum(record[name] for record in records) / max(1e-9, sum(record["window_s"] for record in records)))


def _cores(records: Sequence[Record]) -> float:
    """Processor seconds per second of one process, which may write two kinds of records about the same time."""
    windows = _steps(records) or records
    spent_s = sum(record["cpu_s"] for record in records)
    return float(spent_s / max(1e-9, sum(record["window_s"] for record in windows)))


def _policy_lag(
    run: RunFolder, config: TrainConfig, late: Mapping[tuple[str, int], Sequence[Record]]
) -> tuple[float, float]:
    """Median and 99th percentile: of the learners' records, or of the gradients that asynchronous servers took."""
    if config.central.mode == "central":
        windows = [r for (role, _), records in late.items() if role == "learner" for r in _steps(records)]
        p50s, p99s = ([r[name] for r in windows if name in r] for name in ("policy_lag_p50", "policy_lag_p99"))
        return (float(np.median(p50s)), float(np.percentile(p99s, 99))) if p50s else (float("nan"), float("nan"))
    audit = run.audit / "commits.jsonl"
    if not audit.exists():
        return 0.0, 0.0  # a collective: everybody computes on the parameters of the step
    lags = [lag for commit in history(read_audit(audit)) for lag in commit.get("staleness", [0])]
    p50, p99 = np.percentile(lags or [0], (50, 99))
    return float(p50), float(p99)


def read_csv(path: Path) -> list[Cost]:
    """Of a costs.csv."""
    return [
        Cost(**{key: value if key in ("architecture", "network") else float(value) for key, value in row.items()})
        for row in rows_of(path)
    ]


def table(costs: Sequence[Cost]) -> str:
    """The rows in Markdown, by network."""
    columns = (
        "network", "architecture", "agent steps/s", "frames/s", "updates/s", "core-seconds per million frames",
        "cores used", "policy lag p50", "p99",
    )  # fmt: skip
    rows = [
        (
            cost.network, ARCHITECTURES.get(cost.architecture, cost.architecture),
            f"{cost.agent_steps_per_s:,.0f}", f"{cost.frames_per_s:,.0f}", f"{cost.updates_per_s:.1f}",
            f"{cost.core_s_per_million_frames:,.0f}", f"{cost.cores_used:.2f}", f"{cost.lag_p50:g}",
            f"{cost.lag_p99:g}",
        )
        for cost in costs
    ]  # fmt: skip
    return markdown(columns, rows)


def plot_costs(costs: Sequence[Cost], folder: Path) -> list[Path]:
    """Bars by network: agent steps/s, and core-seconds for a million frames."""
    written = []
    for field, name, title in (
        ("agent_steps_per_s", "speed", "agent steps/s"),
        ("core_s_per_million_frames", "cost", "core-seconds per million frames"),
    ):
        figure, axes = new_figure()
        networks = list(dict.fromkeys(cost.network for cost in costs))
        architectures = list(dict.fromkeys(cost.architecture for cost in costs))
        width = 0.8 / len(architectures)
        for index, architecture in enumerate(architectures):
            rows = [cost for cost in costs if cost.architecture == architecture]
            places = [networks.index(cost.network) - 0.4 + (index + 0.5) * width for cost in rows]
            heights: list[Any] = [getattr(cost, field) for cost in rows]
            label = ARCHITECTURES.get(architecture, architecture)
            bars = axes.bar(places, heights, width * 0.92, color=PALETTE[index % len(PALETTE)], label=label)
            axes.bar_label(bars, [f"{height:,.0f}" for height in heights], fontsize=6)
        axes.set_xticks(range(len(networks)), [f"{network} network" for network in networks])
        axes.grid(False, axis="x")
        axes.set_ylabel(title)
        legend_below(axes)
        written += save(figure, folder / name)
    return written
