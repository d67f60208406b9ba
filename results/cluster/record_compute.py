"""Records how long one lane's rollout takes: `python results/cluster/record_compute.py` (idle machine, 5 minutes).

Real Breakout runs in one process on one core: 5 steps of 1 or 4 environments, forward and backward pass, for each
network. Those that are there already are left out. What adding up the lanes' gradients takes is measured by
`python -m param_servers.benchmarks.lanes --lanes 2`.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dba3c.simulation.calibration import calibrate
from dba3c.studies.page import facts

HERE = Path(__file__).resolve().parent
TIMES = HERE / "compute_times.csv"
ROLLOUTS = {"small": 400, "nature": 300, "dba3c": 200}
"""Of each number of environments; the last networks are slower."""
PRECISION = {"small": "bfloat16", "nature": "bfloat16", "dba3c": "float32"}
"""Of the presets (docs/environments.md); DBA3C's network is as it was in 2017."""
ENVIRONMENTS = (1, 4)
LENGTH_STEPS = 5


def record(network: str, environments: int) -> tuple[float, ...]:
    """Seconds of each rollout with its gradient, after the warm-up."""
    frames = 4 * ROLLOUTS[network] * LENGTH_STEPS * environments
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = (
            f"train ALE/Breakout-v5 --exchange local --workers 1 --envs-per-worker {environments} --metrics-window-s 0 "
            f"--rollout-length {LENGTH_STEPS} --network {network} --precision {PRECISION[network]} --track --seed 1 "
            f"--total-frames {frames} --run-dir {run}"
        )
        if network == "dba3c":
            words += " --no-grayscale"
        command = ["taskset", "-c", "1", sys.executable, "-m", "launch", *words.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
        return calibrate([run]).work.compute.samples_s


def main() -> None:
    known = set()
    if TIMES.exists():
        with TIMES.open(newline="", encoding="utf-8") as file:
            known = {(row["network"], int(row["environments"])) for row in csv.DictReader(file)}
    with TIMES.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not known:
            writer.writerow(("network", "environments", "precision", "rollout", "ms"))
        for network in ROLLOUTS:
            for environments in ENVIRONMENTS:
                if (network, environments) in known:
                    continue
                times_s = record(network, environments)
                rows = ((network, environments, PRECISION[network], n, f"{1e3 * t:.4g}") for n, t in enumerate(times_s))
                writer.writerows(rows)
                file.flush()
                told = f"{len(times_s)} rollouts, mean {1e3 * sum(times_s) / len(times_s):.2f} ms"
                print(f"{network}, {environments} environments: {told}", flush=True)
    made = facts("python results/cluster/record_compute.py") | {"load_average": os.getloadavg()}
    (HERE / "compute_times.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
