"""What is printed cannot fail, hang or end the process that prints it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dba3c.errors import warn_on_stderr
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder
from launch.cli.main import main
from launch.output import say_to_stderr

SAY = """
import os, sys
from launch import output
from launch.output import harmless_output
output.PATIENCE_S = float(os.environ.get("PATIENCE_S", output.PATIENCE_S))
with harmless_output():
    for _ in range(300):
        print("one line – of many" * 100, flush=True)
        print("a warning", file=sys.stderr)
print("done", file=open(sys.argv[1], "w"))
"""


def say(tmp_path: Path, output: int, **environ: str) -> int:
    """Print a lot there; the exit code, when all was done."""
    command = [sys.executable, "-c", SAY, str(tmp_path / "done")]
    process = subprocess.run(command, stdout=output, stderr=output, env={**os.environ, **environ}, timeout=60)
    assert (tmp_path / "done").read_text() == "done\n"
    return process.returncode


def test_a_fork_is_heard_too() -> None:
    program = """
import os
from launch import output
from launch.output import harmless_output
output.PATIENCE_S = 60.0
with harmless_output():
    print("before the fork", flush=True)
    if not os.fork():
        print("from the fork", flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["before the fork", "from the fork"]


def test_a_full_disk_swallows_what_is_said(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        assert say(tmp_path, full.fileno()) == 0


def test_what_is_said_from_python_can_be_lost_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    monkeypatch.setattr(sys, "stderr", Gone())
    say_to_stderr("worker 0: killed by SIGKILL; starting it again")
    warn_on_stderr("how the run ended cannot be noted")
    monkeypatch.setattr(Gone, "write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        say_to_stderr("worker 0: killed by SIGKILL; starting it again")


def test_a_command_says_in_escapes_what_the_encoding_of_its_output_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.create(tmp_path / "run", {}) as run:
        MetricsWriter(run, "worker", 0).record_event("joined", "here – as worker 0")
        run.end_life("finished", "done")
    said = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", said)
    assert main(["watch", str(run.path)]) == 0
    said.seek(0)
    assert said.readline() == "worker-0: here \\u2013 as worker 0\n"


def test_what_a_full_disk_does_not_take_of_a_short_command_is_one_line() -> None:
    command = [sys.executable, "-m", "launch", "sbatch", "--nodes", "4", "--servers", "1"]
    for unbuffered in ("", "1"):
        environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environ)
        assert (done.returncode, done.stderr) == (2, "dba3c: cannot write: No space left on device\n")


@pytest.mark.parametrize("reader", ["gone", "stopped", "stopped, and never waits"])
def test_a_reader_that_reads_nothing_holds_nobody_up(tmp_path: Path, reader: str) -> None:
    ours, its = os.pipe()
    if reader == "gone":
        os.close(ours)
    os.set_blocking(its, "never" not in reader)
    assert say(tmp_path, its) == 0


def test_a_character_that_the_terminal_lacks_is_escaped_and_lines_arrive_in_their_order(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        assert say(tmp_path, said.fileno(), PYTHONIOENCODING="ascii", PATIENCE_S="60") == 0
        lines = (tmp_path / "said").read_text().splitlines()
    assert len(lines) == 600
    assert lines[0].startswith(r"one line \u2013 of many") and lines[1] == "a warning"


def test_a_closed_output_is_one_that_nobody_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAY, str(tmp_path / "done")]
    assert subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *command], timeout=60).returncode == 0
    assert (tmp_path / "done").exists()
