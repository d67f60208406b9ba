"""How long 64 ranks take to start on a real Slurm on this machine, and what memory each takes.

    python results/launch/measure.py       (root; tests/cluster/install_slurm.sh; 15 GB of memory; some minutes)

The committed 64-node script with CartPole; the Slurm of many nodes is that of `make test-cluster`. Beside it, how long
as many interpreters take to import torch, which each rank has to. Writes launch.json and the tables of README.md in
results/launch. What the exchange of 64 workers costs is `param_servers.benchmarks.exchange`'s to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from dba3c.studies.page import facts, made_by, markdown, renew

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.cluster.conftest import PATIENCE_S, Cluster, Job, lab

HERE = Path(__file__).resolve().parent
STEPS_BEFORE_MEMORY = 10
SERVERS = 4
RANKS = 64


def main() -> None:
    """Measure, write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    subprocess.run([sys.executable, "-c", "import launch.cli.runs, launch.role"], check=True, timeout=PATIENCE_S)
    imports_s = import_everywhere(RANKS)
    with (
        tempfile.TemporaryDirectory(prefix="dba3c-lab-") as folder,
        contextmanager(lab)(Path(folder), RANKS) as cluster,
    ):
        startup = measure_startup(cluster, RANKS)
    made = facts("python results/launch/measure.py")
    measured = {**made, "imports_s": imports_s, "startup": startup}
    (HERE / "launch.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(f"torch alone, imported by as many interpreters: {imports_s:.1f} s", *tables(startup), sep="\n\n")
    renew(HERE / "README.md", made_by(measured), *tables(startup))


def tables(startup: dict[str, Any]) -> list[str]:
    """Those of the page: milestones, memory."""
    moments = {name.removesuffix("_s"): value for name, value in startup.items() if name.endswith("_s")}
    sizes = ("processes", "rss_mb", "pss_mb", "pss_sum_mb")
    memory = [(kind, *(found[name] for name in sizes)) for kind, found in startup["memory_mb"].items()]
    seconds = [(name.replace("_", " "), f"{value:.1f}") for name, value in moments.items()]
    return [
        markdown(("since sbatch", "s"), seconds),
        markdown(("process", "count", "RSS", "PSS", "PSS of all"), memory),
    ]


def import_everywhere(ranks: int) -> float:
    """Seconds until as many interpreters, started at once, have imported torch and do nothing else."""
    command = [sys.executable, "-c", "import os, torch; os._exit(0)"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # as a rank of one core
    began_s = time.monotonic()
    interpreters = [subprocess.Popen(command, env=environ) for _ in range(ranks)]
    if any(interpreter.wait(PATIENCE_S) for interpreter in interpreters):
        sys.exit("error: torch cannot be imported by so many interpreters")
    return time.monotonic() - began_s


def measure_startup(cluster: Cluster, nodes: int) -> dict[str, Any]:
    """Seconds since the submission to each milestone, and memory of the processes by kind, in MB."""
    args = f"--servers {SERVERS} --total-frames 1000000000 --stop-score 1000000"
    submitted_s = time.time()
    job = cluster.submit("breakout_64nodes.sh", cluster.folder, f"--nodes={nodes}", args=args)
    job.wait_for_commits(1)
    first_step_s = time.time()
    job.wait_for_commits(STEPS_BEFORE_MEMORY)
    job.wait_until(lambda: len(joined_s(job)) == nodes, "all workers")
    memory = memory_by_kind(job)
    cluster.run("scancel", job.number)
    job.wait_for_end()
    after_s = [moment_s - submitted_s for moment_s in joined_s(job)]
    return {
        "ranks": nodes,
        "chief_up_s": job.lives()[0]["started_s"] - submitted_s,
        "first_worker_joined_s": after_s[0],
        "half_of_the_workers_joined_s": median(after_s),
        "first_step_s": first_step_s - submitted_s,
        "last_worker_joined_s": after_s[-1],
        "memory_mb": memory,
    }


def memory_by_kind(job: Job) -> dict[str, dict[str, float]]:
    """Kind of process → count, median resident and proportional set size (shared pages divided by their users)."""
    found: dict[str, list[tuple[float, float]]] = {}
    slurm_conf = job.cluster.environ["SLURM_CONF"]
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if environ.get("SLURM_CONF") == slurm_conf and environ.get("SLURM_JOB_ID") == job.number:
                memory = process.memory_full_info()
                found.setdefault(kind_of(process.cmdline()), []).append((memory.rss / 1e6, memory.pss / 1e6))
        except psutil.Error:
            continue
    return {
        kind: {
            "processes": len(sizes),
            "rss_mb": round(median(rss for rss, _ in sizes), 1),
            "pss_mb": round(median(pss for _, pss in sizes), 1),
            "pss_sum_mb": round(sum(pss for _, pss in sizes), 1),
        }
        for kind, sizes in sorted(found.items())
    }


def kind_of(command: list[str]) -> str:
    """A role, what roles are forked from, "rank" for the launcher of a rank, or Slurm's own."""
    if "--role" in command:
        return command[command.index("--role") + 1]
    if any("launch.local.fork_server" in word for word in command):
        return "fork server"
    if "train" in command and "job" not in command and not any(word.endswith("srun") for word in command):
        return "rank"
    return "job script and srun"


def joined_s(job: Job) -> list[float]:
    """When each worker first joined."""
    events = [record for record in job.records("metrics/server-0.jsonl") if record["kind"] == "event"]
    joined = [record for record in events if record["event"] == "joined"]
    return sorted({event["message"].split(" joined")[0]: event["time_s"] for event in reversed(joined)}.values())


if __name__ == "__main__":
    main()
