"""A Slurm of many nodes on this machine, as `make test-cluster` uses it (root; tests/cluster/install_slurm.sh)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "cluster"
UP_TIMEOUT_S, DOWN_TIMEOUT_S, COMMAND_TIMEOUT_S = 300.0, 60.0, 60.0


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
