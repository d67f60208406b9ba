"""What memory `make breakout` takes: `python results/launch/memory.py` (half a minute).

Trains with the preset, as `make breakout` does; then the proportional set size of each of its processes (pages that
several share are divided among them) is added up. Adds a row to memory.json. Other work changes nothing, but for other
runs of the same installation, which share its pages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from dba3c.studies.page import facts

HERE = Path(__file__).resolve().parent
AFTER_S = 30.0
MIB = 2**20


def main() -> None:
    """Measure, write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = HERE / "memory.json"
    known = json.loads(rows.read_text(encoding="utf-8")) if rows.exists() else []
    row = {**facts("python results/launch/memory.py"), "after_s": AFTER_S, "pss_mib": measured()}
    row["pss_of_all_mib"] = round(sum(row["pss_mib"].values()), 1)
    rows.write_text(json.dumps([*known, row], indent=1) + "\n", encoding="utf-8")
    print(row["pss_of_all_mib"], row["pss_mib"])


def measured() -> dict[str, float]:
    """Kind of process and its number → its proportional set size, MiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "launch", "train", "breakout", "--run-dir", f"{folder}/run"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
            try:
                time.sleep(AFTER_S)
                parent = psutil.Process(launcher.pid)
                processes = [parent, *parent.children(recursive=True)]
                return {
                    f"{kind_of(process.cmdline())} {number}": round(process.memory_full_info().pss / MIB, 1)
                    for number, process in enumerate(processes)
                }
            finally:
                launcher.terminate()


def kind_of(command: list[str]) -> str:
    """A role, what roles are forked from, or the launcher."""
    if "--role" in command:
        return command[command.index("--role") + 1]
    return "fork server" if any("launch.local.fork_server" in word for word in command) else "launcher"


if __name__ == "__main__":
    main()
