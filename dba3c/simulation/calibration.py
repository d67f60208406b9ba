"""From measurements to the model: run folders give the work of a step, by section times and counts in metrics/*.jsonl.

Records are sums over windows of about a second (`--metrics-window-s`; 0 writes every step). Where a record holds c
steps its mean varies by 1/√c as much as a step does, which is undone. The shape of the distribution can only be seen
in records of one step: those of one worker are drawn from as they are, else steps are lognormal with stalls apart.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dba3c.errors import UserError
from dba3c.metrics.reader import whole_run
from dba3c.runs.folder import RunFolder
from dba3c.simulation.cluster import ComputeTimes, Work
from dba3c.simulation.simulate import AgentCosts

COMPUTE_SECTIONS = ("environment", "inference", "learning")
LEAST_STEPS = 20
_WARM_UP_RECORDS = 2
"""Records of each worker that are left out: torch's late imports, first allocations."""
_STALLED = 6.0
_QUARTILES_OF_NORMAL = 1.349
"""Between the quartiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What runs say about a step."""

    work: Work
    costs: AgentCosts
    steps: int
    """Gradients that it rests on."""
    aggregate_bytes_per_s: float
    apply_bytes_per_s: float


@dataclass
class _Seen:
    """Sums over one run or several."""

    counts: list[int] = field(default_factory=list)
    means_s: list[float] = field(default_factory=list)
    workers: list[tuple[str, int]] = field(default_factory=list)
    has_workers: bool = False
    sections_s: Counter[str] = field(default_factory=Counter)
    agent_steps: float = 0.0
    gradients: float = 0.0
    commits: float = 0.0
    aggregating_s: float = 0.0
    applying_s: float = 0.0


def calibrate(paths: Sequence[str | Path], model_bytes: float | None = None) -> Calibration:
    """Measures a step from run folders of one configuration.

    Args:
        model_bytes: M; None: from a checkpoint's manifest, else from the bytes that servers received.

    Raises:
        UserError: no run, a broken one, too few steps, none of them timed, or M cannot be known.
    """
    seen = _Seen()
    runs = [RunFolder.open(path) for path in paths]
    folder, times = Counter(run.path for run in runs).most_common(1)[0]
    if times > 1:
        raise UserError(f"{folder} is given {times} times: its gradients would count as many times")
    known = {round(_read(run, seen)) for run in runs} - {0}
    steps, names = sum(seen.counts), ", ".join(str(path) for path in paths)
    if not seen.has_workers:
        raise UserError(f"{names}: no records of workers: neither central inference nor a committed curve has any")
    if steps < LEAST_STEPS:
        raise UserError(
            f"{names}: {steps} gradients after each worker's first {_WARM_UP_RECORDS} records, too few to calibrate "
            f"({LEAST_STEPS} are needed): let it run longer, or with a shorter --metrics-window-s"
        )
    if model_bytes is None and len(known) != 1:
        what = f"runs disagree on the model's bytes ({sorted(known)})" if known else "no server told the model's bytes"
        raise UserError(f"{what}: give --megabytes")
    size = model_bytes if model_bytes is not None else float(known.pop())
    return Calibration(
        work=Work(model_bytes=size, compute=_times(seen), data_points=seen.agent_steps / steps),
        costs=AgentCosts(**{f"{name}_s": seen.sections_s[name] / seen.agent_steps for name in COMPUTE_SECTIONS}),
        steps=steps,
        aggregate_bytes_per_s=_rate(seen.gradients * size, seen.aggregating_s),
        apply_bytes_per_s=_rate(seen.commits * size, seen.applying_s),
    )


def _read(run: RunFolder, seen: _Seen) -> float:
    """Adds one run's records; returns M in bytes, 0 when it does not say."""
    records_of: Counter[int] = Counter()
    accepted = received_bytes = 0.0
    for record in whole_run(run):
        count, rank = int(record.get("count") or 0), record["rank"]
        sections = record.get("sections_s") or {}
        if record["kind"] == "step" and record["role"] == "worker" and count:
            seen.has_workers = True
            is_gradient = "accepted" in record  # else another lane's part of one, which lane 0 counts and times
            if is_gradient:
                accepted += record["accepted"] or 0  # servers receive and add up few others
                records_of[rank] += 1
            if records_of[rank] > _WARM_UP_RECORDS:
                took_s = {name: sections.get(name, 0.0) for name in COMPUTE_SECTIONS}
                if is_gradient:
                    seen.counts.append(count)
                    seen.means_s.append(sum(took_s.values()) / count)
                    seen.workers.append((str(run.path), rank))
                seen.agent_steps += record.get("agent_steps") or 0
                seen.sections_s.update(took_s)
        elif record["kind"] == "server":
            received_bytes += record.get("bytes_received") or 0.0
            seen.commits += (record.get("commits") or 0) if rank == 0 else 0
            seen.aggregating_s += sections.get("aggregating", 0.0)
            # a rank of an all-reduce applies while its worker pushes: there it is no section of its own
            seen.applying_s += sections.get("applying", 0.0) + (record.get("applying_s") or 0.0)
    seen.gradients += accepted
    return float(_manifest_bytes(run) or (received_bytes / accepted if accepted else 0.0))


def _times(seen: _Seen) -> ComputeTimes:
    """Mean and variation of ordinary steps, the variation between workers, and how often a step stalls for how long.

    A record that is far above the median (6 robust standard deviations of a mean of its count) holds one stalled step.
    """
    counts, means = np.array(seen.counts, dtype=np.float64), np.array(seen.means_s)
    names = list(dict.fromkeys(seen.workers))
    worker = np.array([names.index(key) for key in seen.workers])
    medians = np.array([np.median(means[worker == index]) for index in range(len(names))])
    above_s = means - medians[worker]
    low, high = np.quantile(above_s * np.sqrt(counts), [0.25, 0.75])
    deviation_s = float(high - low) / _QUARTILES_OF_NORMAL
    stalled = above_s > _STALLED * np.maximum(deviation_s / np.sqrt(counts), 0.01 * medians[worker])
    ordinary = ~stalled
    mean = float(np.average(means[ordinary], weights=counts[ordinary]))
    if not mean > 0:
        raise UserError("the runs timed no sections, of which a step's work is known")
    if counts.max() == 1 and len(names) == 1:  # every step of one worker was written down: draw from those
        whole = float(means.mean())
        return ComputeTimes(mean_s=whole, variation=float(means.std()) / whole, samples_s=tuple(means.tolist()))
    noise = deviation_s**2 * len(names) / counts.sum()
    between = float(np.var(medians, ddof=1)) - noise if len(names) > 1 else 0.0
    excess_s = float((above_s * counts)[stalled].mean()) if stalled.any() else 0.0
    return ComputeTimes(
        mean_s=mean,
        variation=deviation_s / mean,
        worker_variation=math.sqrt(max(0.0, between)) / mean,
        straggler_probability=float(stalled.sum() / counts.sum()),
        straggler_slowdown=1 + excess_s / mean,
    )


def _manifest_bytes(run: RunFolder) -> int | None:
    """M from the newest checkpoint's manifest: its last cut, in float32."""
    for manifest in sorted(run.checkpoints.glob("step-*/manifest.json"), reverse=True):
        try:
            return 4 * int(json.loads(manifest.read_text(encoding="utf-8"))["cuts"][-1])
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue  # torn: an older one has the same cuts
    return None


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if amount and seconds else math.inf
