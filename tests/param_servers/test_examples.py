"""What the README shows, run as a stranger would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from param_servers.benchmarks.exchange import main

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_digits_example_learns_although_a_worker_is_killed() -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "param_servers.examples.digits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "worker 4 left" in done.stdout
    accuracy = re.search(r"accuracy after \d+ steps: ([0-9.]+)", done.stdout)
    assert accuracy is not None and float(accuracy[1]) > 0.9
    assert not done.stderr


def test_what_the_readme_shows_runs_as_it_stands() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "param_servers" / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loss = re.fullmatch(r"enough: loss ([0-9.]+) after 20[01] steps\n", done.stdout)
    assert loss is not None and float(loss[1]) < 0.01, done.stdout


@pytest.mark.parametrize("words", ["--servers 2 --workers 2", "--exchange majority --workers 2 --backup 1"])
def test_the_benchmark_measures_a_small_case(words: str) -> None:
    command = [sys.executable, "-m", "param_servers.benchmarks.exchange", "--megabytes", "0.1", "--steps", "5"]
    command += words.split()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert '"step_ms"' in done.stdout


def test_the_benchmark_refuses_backup_workers_where_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--exchange", "allreduce", "--backup", "1"])
    assert "--exchange allreduce knows no backup workers" in capsys.readouterr().err
