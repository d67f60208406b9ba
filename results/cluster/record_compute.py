"""Records how long one lane computes for a gradient: `python results/cluster/record_compute.py` (idle machine, 6 min).

Real Breakout runs in one process on one core: 5 steps of 1 or 4 environments, forward and backward pass, for each
network (compute_times.csv); and the updates of PPO's iterations, of which the first takes the rollout, too
(ppo_times.csv). Those that are there already are left out. What adding up the lanes' gradients takes is measured by
`python -m param_servers.benchmarks.lanes --lanes 2`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headline import PPO_UPDATES

from dba3c.simulation.calibration import calibrate
from dba3c.studies.page import facts, rows_of, write_rows

HERE = Path(__file__).resolve().parent
TIMES = HERE / "compute_times.csv"
ROLLOUTS = {"small": 400, "nature": 300, "dba3c": 200}
"""Of each number of environments; the last networks are slower."""
PRECISION = {"small": "bfloat16", "nature": "bfloat16", "dba3c": "float32"}
"""Of the presets (docs/environments.md); DBA3C's network is as it was in 2017."""
ENVIRONMENTS = (1, 4)
LENGTH_STEPS = 5
SHAPE = ("network", "environments", "precision")

PPO_TIMES = HERE / "ppo_times.csv"
PPO = "--algorithm ppo --rollout-length 32 --ppo-epochs 3 --ppo-minibatches 8"
PPO_ITERATIONS = {1: 60, 4: 40, 20: 12, 60: 6}
"""For so many environments of a lane: 720 in all are 60 nodes × 12 lanes × 1, 15 × 12 × 4, 3 × 12 × 20, 1 × 12 × 60."""


def record(words: str, frames: int) -> tuple[float, ...]:
    """Seconds of each gradient with what had to be played for it, after the warm-up of two."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = (
            f"train ALE/Breakout-v5 --exchange local --workers 1 --lanes 1 --metrics-window-s 0 --track --seed 1 "
            f"--total-frames {frames} --run-dir {run} {words}"
        )
        command = ["taskset", "-c", "1", sys.executable, "-m", "launch", *words.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
        return calibrate([run]).work.compute.samples_s


def record_rollouts() -> None:
    """What compute_times.csv lacks."""
    known = {(row["network"], int(row["environments"])) for row in rows_of(TIMES)}
    for network in ROLLOUTS:
        for environments in ENVIRONMENTS:
            if (network, environments) in known:
                continue
            words = (
                f"--envs-per-worker {environments} --rollout-length {LENGTH_STEPS} --network {network} "
                f"--precision {PRECISION[network]} {'--no-grayscale' if network == 'dba3c' else ''}"
            )
            times_s = record(words, 4 * ROLLOUTS[network] * LENGTH_STEPS * environments)
            lines = [(network, environments, PRECISION[network], n, f"{1e3 * s:.4g}") for n, s in enumerate(times_s)]
            append(TIMES, (*SHAPE, "rollout", "ms"), lines)


def record_ppo() -> None:
    """What ppo_times.csv lacks: whole iterations, but for the first."""
    known = {int(row["environments"]) for row in rows_of(PPO_TIMES)}
    for environments, iterations in PPO_ITERATIONS.items():
        if environments in known:
            continue
        words = f"{PPO} --envs-per-worker {environments} --network small --precision {PRECISION['small']}"
        times_s = record(words, 4 * 32 * environments * iterations)[PPO_UPDATES - 2 :]
        times_s = times_s[: len(times_s) // PPO_UPDATES * PPO_UPDATES]
        lines = [
            ("small", environments, PRECISION["small"], *divmod(n, PPO_UPDATES), f"{1e3 * s:.4g}")
            for n, s in enumerate(times_s)
        ]
        append(PPO_TIMES, (*SHAPE, "iteration", "update", "ms"), lines)


def append(path: Path, columns: Sequence[str], lines: Sequence[tuple[Any, ...]]) -> None:
    """After what is there; how they were made beside them."""
    write_rows(path, [*rows_of(path), *(dict(zip(columns, line, strict=True)) for line in lines)])
    made = facts("python results/cluster/record_compute.py") | {"load_average": os.getloadavg()}
    path.with_suffix(".json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    mean_ms = sum(float(line[-1]) for line in lines) / len(lines)
    print(f"{lines[0][0]}, {lines[0][1]} environments: {len(lines)} gradients, mean {mean_ms:.2f} ms", flush=True)


if __name__ == "__main__":
    record_rollouts()
    record_ppo()
