"""A small measured scaling study, and what the simulator makes of it for more nodes.

    python results/scaling/measure.py          (about 13 minutes on an idle machine of 2 cores)

1. `dba3c study scaling`: Breakout with 1 and 2 workers, real training on this machine, 3 seeds each.
2. A gradient's time is calibrated from the runs of one worker, and 1 … 64 workers on own hosts are simulated.

Writes study/ (the runs, downsampled), simulated.json and README.md here, and the figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from dba3c.runs.host_facts import git_commit, host
from dba3c.simulation.calibration import calibrate
from dba3c.simulation.cluster import Cluster, Setup, Work
from dba3c.simulation.simulate import simulate
from dba3c.studies.results import commit_into, data_points_per_s, read_results

HERE = Path(__file__).resolve().parent
WORKERS, SERVERS, GBIT = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), (1, 10)
DATA_POINTS_TO_300 = 4_219_196
"""Of results/breakout_2cores: agent steps until the mean of 50 games was 300."""
STEPS = 200


def cluster_of(gbit: float) -> Cluster:
    """50 µs one way, 5 µs of a coordinator for a message: assumptions."""
    return Cluster(bytes_per_s=gbit * 1e9 / 8, latency_s=50e-6, wire_efficiency=0.95, message_s=5e-6)


def backups(workers: int) -> int:
    """DBA3C's share: 5 of 65."""
    return round(workers * 5 / 65)


def simulated(work: Work) -> dict[str, object]:
    """Data points/s against workers (up to 4 servers), and against servers (64 workers)."""
    rows: dict[str, list[list[float]]] = {"workers": [], "servers": []}
    for gbit in GBIT:
        for n in WORKERS:
            setup = Setup(workers=n, servers=min(n, 4), backup=backups(n))
            rows["workers"].append([gbit, n, simulate(cluster_of(gbit), work, setup, STEPS).data_points_per_s])
        for k in SERVERS:
            setup = Setup(workers=64, servers=k, backup=backups(64))
            rows["servers"].append([gbit, k, simulate(cluster_of(gbit), work, setup, STEPS).data_points_per_s])
    return {"work": asdict(work), **rows}


def run_study(folder: Path, minutes: float, seeds: int, train: list[str]) -> str:
    """Runs the study; returns its command."""
    words = ["study", "scaling", "--env", "ALE/Breakout-v5", "--values", "1", "2", "--seeds", str(seeds)]
    options = ["--max-hours", f"{minutes / 60:.4f}", "--envs-per-worker", "16", "--track", *train]
    command = [*words, "--into", str(folder), "--", *options]
    subprocess.run([sys.executable, "-m", "launch", *command], check=True)
    return " ".join(["dba3c", *words, "--", *options])


def page(command: str, compute_ms: float, variation: float) -> str:
    """README.md, from what lies beside it."""
    results = read_results(HERE / "study")
    rates = {result.point.x: result.estimate(data_points_per_s) for result in results.points}
    one, two = rates[1.0], rates[2.0]
    assert one is not None and two is not None
    commit, facts = git_commit(), host()
    seeds = len(results.study.seeds)
    return f"""# Scaling, measured on one machine and simulated to 64 workers

    python results/scaling/measure.py

which runs `{command}`. {time.strftime("%Y-%m-%d", time.gmtime())}, commit {commit.get("commit", "unknown")}\
{" (with changes)" if commit.get("dirty") else ""}, {facts["usable_cores"]} cores of {facts["processor"]}.

![data points per second](speed.png)

**Measured**: Breakout, 1 worker with 1 server and 2 workers with 2 servers, all on the same two cores, {seeds} seeds:
{one.centre:,.0f} and {two.centre:,.0f} data points/s, {two.centre / one.centre:.2f} times as many. Servers and workers
share the cores. The simulated curves begin 9 % lower: their gradient takes the mean of all six runs, three of which
have two workers on these cores.

**SIMULATED** (dotted, hollow): every worker and server has a host of its own with one such core; a gradient of 80 data
points takes {compute_ms:.0f} ms (standard deviation {variation:.0%}, with the stalls of the measured runs), up to 4
servers, {backups(64)} of 64 workers are backups. Latency 50 µs and 5 µs a message are assumptions.

![time to 300](time_to_300.png)

The time to a mean score of 300 takes the {DATA_POINTS_TO_300:,} data points of [the Breakout run](../breakout_2cores/)
(1 of 1 seed reached it)
for granted at every size: that the samples needed do not grow with the batch is an assumption, which no run here shows.

![servers](servers.png)

DBA3C's second plot for this work: 64 workers against the number of servers.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each run, its start included")
    parser.add_argument("--seeds", type=int, default=3)
    options, train = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "study"
        command = run_study(folder, options.minutes, options.seeds, train)
        work = calibrate([folder / "workers-1" / f"seed-{seed}" for seed in range(options.seeds)]).work
        shutil.rmtree(HERE / "study", ignore_errors=True)
        commit_into(folder, HERE / "study", every_s=1.0)
    (HERE / "simulated.json").write_text(json.dumps(simulated(work), indent=1) + "\n", encoding="utf-8")
    text = page(command, 1e3 * work.compute.mean_s, work.compute.variation)
    (HERE / "README.md").write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
