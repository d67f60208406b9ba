"""A small measured scaling study, and what the simulator makes of it for more nodes.

    python results/scaling/measure.py          (about 13 minutes on an idle machine of 2 cores)

1. `dba3c study scaling`: Breakout with 1 and 2 workers, real training on this machine, 3 seeds each.
2. A gradient's time is calibrated from the runs of one worker, and 1 … 64 workers on own hosts are simulated.

Writes study/ (the runs, downsampled), simulated.json and the table of README.md here, and the figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from dba3c.simulation.calibration import calibrate
from dba3c.simulation.cluster import Cluster, Setup, Work
from dba3c.simulation.simulate import simulate
from dba3c.studies.page import made_by, markdown, renew
from dba3c.studies.results import commit_into, data_points_per_s, read_results

HERE = Path(__file__).resolve().parent
WORKERS, SERVERS, GBIT = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), (1, 10)
WORDS = ("study", "scaling", "--env", "ALE/Breakout-v5", "--values", "1", "2")
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


def write_page() -> None:
    """The table and the machine of README.md, from what lies beside it."""
    points = read_results(HERE / "study").points
    compute = json.loads((HERE / "simulated.json").read_text(encoding="utf-8"))["work"]["compute"]
    gradient = f"{1e3 * compute['mean_s']:.0f} ms ± {compute['variation']:.0%}"
    rows = [(f"{point.point.x:g}", point.estimate(data_points_per_s), gradient) for point in points]
    columns = ("workers", "data points/s", "a gradient")
    renew(HERE / "README.md", made_by(points[0].curves[0].meta["lives"][0]), markdown(columns, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each run, its start included")
    parser.add_argument("--seeds", type=int, default=3)
    options, train = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "study"
        words = [*WORDS, "--seeds", str(options.seeds), "--into", str(folder), "--", "--max-hours"]
        words += [f"{options.minutes / 60:.4f}", "--envs-per-worker", "16", "--track", *train]
        subprocess.run([sys.executable, "-m", "launch", *words], check=True)
        work = calibrate([folder / "workers-1" / f"seed-{seed}" for seed in range(options.seeds)]).work
        shutil.rmtree(HERE / "study", ignore_errors=True)
        commit_into(folder, HERE / "study", every_s=1.0)
    (HERE / "simulated.json").write_text(json.dumps(simulated(work), indent=1) + "\n", encoding="utf-8")
    write_page()
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)


if __name__ == "__main__":
    main()
