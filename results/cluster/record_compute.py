"""Records how long one lane computes for a gradient: `python results/cluster/record_compute.py` (idle machine).

Real Breakout runs of one lane, which has a core to itself: 5 steps of its environments, forward and backward pass, of
4 for each network (compute_times.csv), and of those that a lane has where all nodes share 720 (shared_times.csv).
Those that are there already are left out (compute_times.csv was recorded with all processes of a run on one core). What
adding up the lanes' gradients takes is measured by `python -m param_servers.benchmarks.lanes --lanes 2`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from plan import ENVIRONMENTS, LENGTH_STEPS, SHARED_TIMES, TIMES

from dba3c.simulation.calibration import calibrate
from dba3c.studies.page import facts, rows_of, write_rows
from param_servers.benchmarks.hosts import Snapshot

ROLLOUTS = {"small": 2000, "nature": 2000, "dba3c": 1000}
"""The slowest of 64 nodes × 12 lanes is drawn from them, and should not always be the same one (what is there now is
from when 400, 300 and 200 were recorded)."""
QUIET_S, MOST_BUSY = 2.0, 0.05
PRECISION = {"small": "bfloat16", "nature": "bfloat16", "dba3c": "float32"}
"""Of the presets (docs/environments.md); DBA3C's network is as it was in 2017."""
SHARED_ROLLOUTS = {1: 2000, 4: 1000, 20: 300}
"""Of so many environments of a lane: 720 in all are 60 nodes × 12 lanes × 1, 15 × 12 × 4, 3 × 12 × 20."""


def record(words: str, frames: int) -> tuple[float, ...]:
    """Seconds of each gradient with what had to be played for it, after the warm-up of two."""
    before = Snapshot.now(())
    time.sleep(QUIET_S)
    if (busy := (Snapshot.now(()) - before).busy_share) > MOST_BUSY:
        sys.exit(
            f"other work, whose time would be recorded, keeps this machine {busy:.0%} busy: {MOST_BUSY:.0%} may be"
        )
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = (
            f"train ALE/Breakout-v5 --exchange local --workers 1 --lanes 1 --metrics-window-s 0 --track --seed 1 "
            f"--total-frames {frames} --run-dir {run} {words}"
        )
        command = [sys.executable, "-m", "launch", *words.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
        return calibrate([run]).work.compute.samples_s


def record_rollouts(path: Path, network: str, rollouts: Mapping[int, int]) -> None:
    """What the file lacks. `rollouts`: of each number of environments."""
    known = {(row["network"], int(row["environments"])) for row in rows_of(path)}
    for environments, number in rollouts.items():
        if (network, environments) in known:
            continue
        words = (
            f"--envs-per-worker {environments} --rollout-length {LENGTH_STEPS} --network {network} "
            f"--precision {PRECISION[network]} {'--no-grayscale' if network == 'dba3c' else ''}"
        )
        times_s = record(words, 4 * number * LENGTH_STEPS * environments)
        shape = {"network": network, "environments": environments, "precision": PRECISION[network]}
        rows = [{**shape, "rollout": n, "ms": f"{1e3 * s:.4g}"} for n, s in enumerate(times_s)]
        write_rows(path, [*rows_of(path), *rows])
        made = facts("python results/cluster/record_compute.py") | {"load_average": os.getloadavg()}
        path.with_suffix(".json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        mean_ms = 1e3 * sum(times_s) / len(times_s)
        print(f"{network}, {environments} environments: {len(rows)} gradients, mean {mean_ms:.2f} ms", flush=True)


if __name__ == "__main__":
    for of_network, number_of in ROLLOUTS.items():
        record_rollouts(TIMES, of_network, {ENVIRONMENTS: number_of})
    record_rollouts(SHARED_TIMES, "small", SHARED_ROLLOUTS)
