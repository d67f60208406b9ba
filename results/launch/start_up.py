"""From `dba3c train breakout` to its first step on this machine: seconds, processor time, memory of each process.

    python results/launch/start_up.py [--checkout OTHER] [-- OPTIONS OF dba3c train]

Prints one line of JSON. PSS divides shared pages among their users.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--total-frames", "20000", "--metrics-window-s", "0.05")
SETTLED_S = 1.0
"""After the first step: memory is what a run has, not what its start needed."""
GIVE_UP_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ("train", "breakout", *QUICK, "--run-dir", f"{folder}/run", *arguments.options)
        began_s = time.monotonic()
        run = subprocess.Popen(
            [sys.executable, "-m", "launch.cli.main", *words],
            cwd=arguments.checkout,
            env={**os.environ, "PYTHONPATH": str(arguments.checkout)},
            stdout=subprocess.DEVNULL,
        )
        steps = Path(folder) / "run" / "metrics" / "worker-0.jsonl"
        while not (steps.exists() and '"kind": "step"' in steps.read_text()):
            if run.poll() is not None or time.monotonic() - began_s > GIVE_UP_S:
                sys.exit("the run took no step")
            time.sleep(0.01)
        first_step_s = time.monotonic() - began_s
        time.sleep(SETTLED_S)
        memory = memory_mib(psutil.Process(run.pid))
        code = run.wait(GIVE_UP_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured = {
        "options": arguments.options,
        "exit_code": code,
        "first_step_s": round(first_step_s, 2),
        "ended_s": round(time.monotonic() - began_s, 2),
        "core_s": round(used.ru_utime + used.ru_stime, 1),
        "pss_mib": round(sum(pss for _, pss, _ in memory)),
        "processes": [{"process": name, "pss_mib": round(pss), "private_mib": round(own)} for name, pss, own in memory],
    }
    print(json.dumps(measured))


def memory_mib(launcher: psutil.Process) -> list[tuple[str, float, float]]:
    """Name, PSS and private memory of the launcher and all that descends from it."""
    found = []
    for process in [launcher, *launcher.children(recursive=True)]:
        full, words = process.memory_full_info(), process.cmdline()
        name = "fork server" if any("launch.local.fork_server" in word for word in words) else "launcher"
        if "--role" in words:
            name = " ".join(words[words.index("--role") + 1 : words.index("--role") + 4 : 2])
        found.append((name, full.pss / 2**20, full.uss / 2**20))
    return found


if __name__ == "__main__":
    main()
