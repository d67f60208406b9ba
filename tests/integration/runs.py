"""Whole runs in real processes: start one, wait for what it should do, look at what it left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dba3c.metrics.charts import Point, points_of
from dba3c.runs.folder import RunFolder
from launch.cli.main import main
from param_servers.checkpoint.files import find_newest

ROOT = Path(__file__).parents[2]


class Run:
    """A `dba3c` command in a process of its own, killed with all its children when the test is over.

    Args:
        output: where it prints, instead of a pipe that `wait` reads.
    """

    def __init__(self, *words: str, folder: Path, output: int = subprocess.PIPE) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "launch", *words]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True, env=environ
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.children(), self.process]:
            try:
                process.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def role(self, role: str, rank: int) -> psutil.Process:
        """The process that plays this role now."""
        wanted = ["--role", role, "--rank", str(rank)]
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                command = child.cmdline()
                if any(command[i : i + 4] == wanted for i in range(len(command))):
                    return child
        raise AssertionError(f"no process plays {role} {rank}")

    def gone(self, pids: list[int], timeout_s: float = 30.0) -> None:
        """Wait until none of these processes is left."""
        _, left = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=timeout_s)
        assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def wait(self, timeout_s: float = 200.0) -> tuple[int, str]:
        """Exit code and everything printed to the pipe."""
        output, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output or ""

    def wait_until(self, condition: Callable[[], Any], what: str, timeout_s: float = 150.0) -> Any:
        """Poll until `condition` is true; fail with what the run printed when it ends or takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended before {what}:\n{self.wait()[1]}")
            time.sleep(0.05)
        raise AssertionError(f"{what} did not happen within {timeout_s} s")

    def steps(self) -> int:
        """Newest committed step that server 0 has reported."""
        return max((r["step"] for r in self.records("server", 0) if r["kind"] == "server"), default=0)

    def records(self, role: str, rank: int) -> list[dict[str, Any]]:
        return records(self.folder, role, rank)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that refuses its input before it has started anything."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1 and "run folder:" not in said.out, said
    return said.err


def records(folder: Path, role: str, rank: int) -> list[dict[str, Any]]:
    """Complete lines of one metrics file."""
    path = folder / "metrics" / f"{role}-{rank}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def charts(folder: Path, every_s: float = 2.0) -> dict[str, float]:
    """The newest value of each chart that a tracker would have drawn of the run."""
    points = [point for point in points_of(RunFolder.open(folder), every_s) if isinstance(point, Point)]
    return {name: point.values[name] for point in points for name in point.values}


def episodes(folder: Path, workers: int) -> list[dict[str, Any]]:
    """Finished games of all workers, in time order."""
    found = [r for rank in range(workers) for r in records(folder, "worker", rank) if r["kind"] == "episode"]
    return sorted(found, key=lambda record: record["time_s"])


def newest_checkpoint(folder: Path) -> Path:
    """The last that was written."""
    path = find_newest(folder / "checkpoints")
    assert path is not None
    return path
