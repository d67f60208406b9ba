"""How long 64 ranks take to start on a real Slurm on this machine, and what memory each takes.

    python results/launch/measure.py       (root; tests/cluster/install_slurm.sh; 12 GB of memory; some minutes)

The committed 64-node script with CartPole; the Slurm of many nodes is that of `make test-cluster`. Writes launch.json
and the tables of README.md in results/launch. What the exchange of 64 workers costs is
`param_servers.benchmarks.exchange`'s to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from dba3c.studies.page import facts, made_by, markdown, renew

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPTS = ROOT / "tests" / "cluster"
UP_TIMEOUT_S, DOWN_TIMEOUT_S, COMMAND_TIMEOUT_S = 300.0, 60.0, 60.0
PATIENCE_S = 1800.0
STEPS_BEFORE_MEMORY = 10
SERVERS = 4


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    ranks = parser.parse_args().ranks
    with slurm_lab(ranks) as lab:
        startup = measure_startup(lab, ranks)
    measured = {**facts(shlex.join(["python", "results/launch/measure.py", *sys.argv[1:]])), "startup": startup}
    (HERE / "launch.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(*tables(startup), sep="\n\n")
    renew(HERE / "README.md", made_by(measured), *tables(startup))


def tables(startup: dict[str, Any]) -> list[str]:
    """Those of the page: milestones, memory."""
    moments = {name.removesuffix("_s"): value for name, value in startup.items() if name.endswith("_s")}
    sizes = ("processes", "rss_mb", "pss_mb", "pss_sum_mb")
    memory = [(kind, *(found[name] for name in sizes)) for kind, found in startup["memory_mb"].items()]
    return [
        markdown(("since sbatch", "s"), [(name.replace("_", " "), f"{value:.1f}") for name, value in moments.items()]),
        markdown(("process", "count", "RSS", "PSS", "PSS of all"), memory),
    ]


class Lab:
    """A running Slurm; ``folder`` holds its daemons' files, and is a place for those of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slurm_conf = str(folder / "slurm.conf")
        self.environ = {**os.environ, "SLURM_CONF": self.slurm_conf, "DBA3C_VENV": sys.prefix}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{self.environ['PATH']}:/usr/sbin"

    def run(self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S, **environ: str) -> str:
        """Output of one of Slurm's programs, started in `folder`. Raises CalledProcessError, TimeoutExpired."""
        environment = {**self.environ, **environ}
        answer = subprocess.run(
            command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=True
        )
        return answer.stdout.strip()


@contextmanager
def slurm_lab(nodes: int) -> Iterator[Lab]:
    """A Slurm of ``nodes`` nodes of 12 cores, gone with all its jobs afterwards."""
    with tempfile.TemporaryDirectory(prefix="dba3c-lab-") as name:
        folder = Path(name)
        log = (folder / "lab.log").open("w")
        try:
            # Not a pipe: the daemons would hold it open.
            up = [str(SCRIPTS / "lab_up.sh"), str(nodes), name]
            subprocess.run(up, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=UP_TIMEOUT_S, check=True)
            yield Lab(folder)
        finally:
            subprocess.run([str(SCRIPTS / "lab_down.sh"), name], timeout=DOWN_TIMEOUT_S, check=True)
            log.close()


def measure_startup(lab: Lab, nodes: int) -> dict[str, Any]:
    """Seconds since the submission to each milestone, and memory of the processes by kind, in MB."""
    run_dir = lab.folder / "startup"
    args = (
        f"--servers {SERVERS} --lanes 1 --envs-per-worker 2 --total-frames 1000000000 --stop-score 1000000 "
        f"--join-timeout-s {PATIENCE_S:.0f} --step-timeout-s 300"
    )
    submitted_s = time.time()
    said = lab.run(
        "sbatch", f"--nodes={nodes}", str(ROOT / "slurm" / "breakout_64nodes.sh"),
        DBA3C_PRESET="CartPole-v1", DBA3C_ARGS=args, DBA3C_RUN_DIR=str(run_dir),
    )  # fmt: skip
    job = said.split()[-1]
    _wait_until(lambda: _commits(run_dir) > 0, "the first step")
    first_step_s = time.time()
    _wait_until(lambda: _commits(run_dir) >= STEPS_BEFORE_MEMORY and len(_joined_s(run_dir)) == nodes, "all workers")
    memory = memory_by_kind(lab, job)
    lab.run("scancel", job)
    _wait_until(lambda: not lab.run("squeue", "--noheader", f"--jobs={job}"), "the job's end")
    joined_s = [moment_s - submitted_s for moment_s in _joined_s(run_dir)]
    begun_s = json.loads((run_dir / "meta.json").read_text())["lives"][0]["started_s"]
    return {
        "ranks": nodes,
        "chief_up_s": begun_s - submitted_s,
        "first_worker_joined_s": joined_s[0],
        "half_of_the_workers_joined_s": median(joined_s),
        "first_step_s": first_step_s - submitted_s,
        "last_worker_joined_s": joined_s[-1],
        "memory_mb": memory,
    }


def memory_by_kind(lab: Lab, job: str) -> dict[str, dict[str, float]]:
    """Kind of process → count, median resident and proportional set size (shared pages divided by their users)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if environ.get("SLURM_CONF") == lab.slurm_conf and environ.get("SLURM_JOB_ID") == job:
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
    if "train" in command and not any(word.endswith(("srun", "launch.slurm.job")) for word in command):
        return "rank"
    return "job script and srun"


def _joined_s(run_dir: Path) -> list[float]:
    return sorted({r["worker"]: r["time_s"] for r in reversed(_events(run_dir)) if r["event"] == "joined"}.values())


def _events(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics" / "server-0.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    events = [record for record in map(json.loads, lines) if record["kind"] == "event"]
    for record in events:
        record["worker"] = record["message"].split(" joined")[0]
    return events


def _commits(run_dir: Path) -> int:
    path = run_dir / "audit" / "commits.jsonl"
    return path.read_text().count('"commit"') if path.exists() else 0


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
