"""The simulator against real steps: workers and servers in network namespaces, each a host with a slow link (root).

    python results/simulation/validation.py

1. A short run of Breakout on this machine, every step written down: the distribution of compute times.
2. Calibration points without compute: latency, time per message, bytes on the wire, unfairness of the links.
3. Validation points, none of which was calibrated on: n, k, b, stragglers. Workers sleep for times drawn from (1), so
   that two cores can stand for many hosts; the model is given the same times, and predicts each point.

Writes validation.csv, .json, .png and .svg and the tables of validation.md; about 10 minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dba3c.errors import UserError
from dba3c.simulation.calibration import MeasuredPoint, calibrate, fit
from dba3c.simulation.cluster import Cluster, ComputeTimes, Outcome, Setup, Work
from dba3c.simulation.simulate import simulate_times
from dba3c.studies.figures import PALETTE, new_figure, save
from dba3c.studies.page import facts, made_by, markdown, renew, rows_of, write_rows
from param_servers.benchmarks.exchange import WARM_UP_STEPS, Case
from param_servers.benchmarks.exchange import run as run_case

RATE_MBIT = 100.0
MEGABYTES = 1.33
STRAGGLERS = (0.05, 3.0)
"""Share of steps, and by how much they are longer: added to what one quiet machine shows."""
CALIBRATION = (
    (1, 1, 0, 0.004), (8, 4, 0, 0.004), (1, 1, 0, 4.0), (2, 1, 0, 1.33), (6, 1, 0, 1.33), (6, 3, 0, 1.33),
    (4, 1, 2, 1.33), (6, 1, 1, 1.33), (6, 2, 1, 1.33),
)  # fmt: skip
"""(n, k, b, megabytes), without compute."""
VALIDATION = (
    (1, 1, 0), (2, 1, 0), (3, 2, 0), (4, 1, 0), (4, 4, 0), (5, 3, 0), (8, 1, 0), (8, 2, 0), (8, 4, 0),
    (3, 1, 1), (4, 2, 2), (6, 4, 1), (7, 3, 2), (8, 1, 2), (8, 2, 1), (8, 4, 2),
)  # fmt: skip
"""(n, k, b), with compute."""
COLUMNS = (
    "part", "workers", "servers", "backup", "megabytes", "rate_mbit", "compute_ms", "steps",
    "measured_ms", "predicted_ms", "error", "measured_dropped", "predicted_dropped",
)  # fmt: skip
TOLERANCE = 0.1
HERE = Path(__file__).resolve().parent
SECONDS, FRAMES, SEED = 25.0, 150_000, 0
"""Of each validation point; of the run that is calibrated from; of the times that are drawn."""
_PAGE_COLUMNS = ("part", "workers", "servers", "backup", "megabytes", "steps", "measured_ms", "predicted_ms")
_FITTED_COLUMNS = ("latency", "a coordinator's message", "tensors on the wire", "overlap lost", "unfairness of n flows")
_MARKERS = ("o", "s", "^")


class Point(NamedTuple):
    """What is measured and predicted."""

    part: str
    setup: Setup
    megabytes: float
    steps: int
    times_s: NDArray[np.float64]
    """[rows, n]: the compute time of worker w on version v is times_s[v % rows, w]."""


class Measured(NamedTuple):
    """What was found."""

    step_s: float
    dropped_share: float


def measure(point: Point) -> Measured:
    """One point, in processes and namespaces of its own: workers sleep for the times they are given.

    Seconds between commits are as the mean of each worker, and of those the median.
    """
    setup, times_s = point.setup, point.times_s
    case = Case("servers", point.megabytes, setup.workers, setup.backup, setup.servers, RATE_MBIT, point.steps)
    means, dropped = [], 0
    for worker in run_case(case, lambda worker, step: time.sleep(times_s[step % len(times_s), worker])).workers:
        pulls = [pull for pull in worker.pulls if pull[0] >= WARM_UP_STEPS]
        (first, began_s), (last, ended_s) = pulls[0], pulls[-1]
        means.append((ended_s - began_s) / (last - first))
        dropped += worker.accepted.count(False)
    accepted = case.last_step * (setup.workers - setup.backup)
    return Measured(step_s=statistics.median(means), dropped_share=dropped / (dropped + accepted))


def predict(cluster: Cluster, point: Point) -> Outcome:
    """The model's answer, from the same compute times."""
    work = Work(model_bytes=point.megabytes * 1e6, compute=ComputeTimes(mean_s=float(point.times_s.mean())))
    return simulate_times(cluster, work, point.setup, point.times_s, point.steps + WARM_UP_STEPS)


def compute_times() -> ComputeTimes:
    """From the run folder of a real run on this machine; stragglers are added."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = (
            "train ALE/Breakout-v5 --exchange local --workers 1 --envs-per-worker 16 --metrics-window-s 0 --track "
            f"--seed 1 --total-frames {FRAMES} --run-dir {run}"
        )
        command = [sys.executable, "-m", "launch", *words.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
        found = calibrate([run]).work.compute
    quantiles = np.quantile(found.samples_s, (np.arange(100) + 0.5) / 100)
    probability, slowdown = STRAGGLERS
    return ComputeTimes(
        mean_s=float(quantiles.mean()),
        variation=float(quantiles.std() / quantiles.mean()),
        samples_s=tuple(float(f"{value:.5g}") for value in quantiles),
        straggler_probability=probability,
        straggler_slowdown=slowdown,
    )


def calibrated(points: list[tuple[Point, Measured]]) -> Cluster:
    """A cluster whose links have the stated rate; the rest is fitted to the calibration points."""
    seen = [
        MeasuredPoint(
            setup=point.setup,
            model_bytes=point.megabytes * 1e6,
            bytes_per_s=RATE_MBIT * 1e6 / 8,
            step_s=measured.step_s,
        )
        for point, measured in points
    ]
    return fit(seen)


def row_of(point: Point, measured: Measured, outcome: Outcome) -> dict[str, object]:
    setup = point.setup
    values = (
        point.part, setup.workers, setup.servers, setup.backup, point.megabytes, RATE_MBIT,
        round(1e3 * float(point.times_s.mean()), 2), point.steps, round(1e3 * measured.step_s, 2),
        round(1e3 * outcome.step_s, 2), round(outcome.step_s / measured.step_s - 1, 4),
        round(measured.dropped_share, 4), round(outcome.dropped_share, 4),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Measures everything, then writes the two files: half of it is not to replace what was there."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    compute = compute_times()
    print(f"compute: mean {1e3 * compute.mean_s:.1f} ms, variation {compute.variation:.2f}", flush=True)
    calibration = []
    for n, k, b, megabytes in CALIBRATION:
        point = Point("calibration", Setup(workers=n, servers=k, backup=b), megabytes, 30, np.zeros((1, n)))
        calibration.append((point, measure(point)))
        print(f"calibration n={n} k={k} b={b} {megabytes} MB: {1e3 * calibration[-1][1].step_s:.2f} ms", flush=True)
    cluster = calibrated(calibration)
    print(cluster, flush=True)
    rows = [row_of(point, measured, predict(cluster, point)) for point, measured in calibration]
    for n, k, b in VALIDATION:
        setup = Setup(workers=n, servers=k, backup=b)
        draft = Point("validation", setup, MEGABYTES, 30, compute.draw(1000, n, SEED))
        steps = max(20, min(300, round(SECONDS / predict(cluster, draft).step_s)))
        point = draft._replace(steps=steps, times_s=draft.times_s[: steps + WARM_UP_STEPS])
        rows.append(row_of(point, measure(point), predict(cluster, point)))
        print(" ".join(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
    write(HERE, rows, cluster, compute)
    draw(HERE)
    print(*tables(HERE), sep="\n\n")
    renew(HERE / "validation.md", made_by(read(HERE)[1]), *tables(HERE))


def write(output: Path, rows: list[dict[str, object]], cluster: Cluster, compute: ComputeTimes) -> None:
    """validation.csv, and validation.json with everything that the predictions rest on."""
    write_rows(output / "validation.csv", rows)
    found = {
        **facts("python results/simulation/validation.py"),
        "seed": SEED,
        "rate_mbit": RATE_MBIT,
        "calibrated": {name: value for name, value in asdict(cluster).items() if np.isfinite(value)},
        "compute": asdict(compute),
    }
    (output / "validation.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# -- the page and its figure, read from the two files ------------------------------------------------------------------


def read(folder: Path) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The rows of validation.csv and the tree of validation.json. Raises UserError when they are not there."""
    try:
        made = json.loads((folder / "validation.json").read_text(encoding="utf-8"))
        return rows_of(folder / "validation.csv"), made
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no validation of the simulator: {error}") from error


def draw(folder: Path) -> list[Path]:
    """Predicted against measured, with the band of 10 %: validation.png and .svg."""
    rows = [row for row in read(folder)[0] if row["part"] == "validation"]
    figure, axes = new_figure()
    for backup in sorted({int(row["backup"]) for row in rows}):
        mine = [row for row in rows if int(row["backup"]) == backup]
        x, y = [float(row["measured_ms"]) for row in mine], [float(row["predicted_ms"]) for row in mine]
        colour, marker = PALETTE[backup % len(PALETTE)], _MARKERS[backup % len(_MARKERS)]
        axes.plot(x, y, linestyle="", marker=marker, color=colour, markerfacecolor="white", label=f"b = {backup}")
    _name_points(axes, rows)
    ends = [
        0.85 * min(float(row["measured_ms"]) for row in rows),
        1.15 * max(float(row["measured_ms"]) for row in rows),
    ]
    axes.plot(ends, ends, color="#555555", linewidth=0.9)
    low, high = ([(1 + sign * TOLERANCE) * end for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color="#555555", alpha=0.15, linewidth=0, label="within 10 %")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured: ms a step (n workers + k servers)")
    axes.set_ylabel("SIMULATED: ms a step")
    axes.legend(frameon=False, fontsize=8)
    return save(figure, folder / "validation")


def _name_points(axes: Axes, rows: list[dict[str, str]]) -> None:
    """n+k beside each mark, below and above the line in turn, so that neighbours do not overlap."""
    for order, row in enumerate(sorted(rows, key=lambda row: float(row["measured_ms"]))):
        right = order % 2 == 0
        axes.annotate(
            f"{row['workers']}+{row['servers']}",
            (float(row["measured_ms"]), float(row["predicted_ms"])),
            textcoords="offset points",
            xytext=(5, -5) if right else (-5, 3),
            ha="left" if right else "right",
            fontsize=6,
        )


def tables(folder: Path) -> list[str]:
    """Those of validation.md: how near, what was fitted, each point."""
    rows, made = read(folder)
    errors = [abs(float(row["error"])) for row in rows if row["part"] == "validation"]
    within, fitted = sum(error <= TOLERANCE for error in errors), made["calibrated"]
    near = (f"{within} of {len(errors)}", f"{sum(errors) / len(errors):.1%}", f"{max(errors):.1%}")
    found = (f"{1e6 * fitted[name]:.0f} µs" for name in ("latency_s", "message_s"))
    shares = (f"{fitted[name]:.1%}" for name in ("wire_efficiency", "overlap_lost"))
    shown = []
    for row in rows:
        dropped = (f"{float(row[name]):.1%}" for name in ("measured_dropped", "predicted_dropped"))
        shown.append([*(row[name] for name in _PAGE_COLUMNS), f"{float(row['error']):+.1%}", *dropped])
    columns = ("", "n", "k", "b", "MB", "steps", "measured ms", "predicted ms", "error", "dropped", "predicted")
    return [
        markdown(("within 10 %", "mean error", "worst"), [near]),
        markdown(_FITTED_COLUMNS, [(*found, *shares, f"{fitted['link_unfairness']:.2f} √n")]),
        markdown(columns, shown),
    ]


if __name__ == "__main__":
    main()
