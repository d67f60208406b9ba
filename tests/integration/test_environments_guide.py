"""The lines of docs/own_environment.md, run as a reader would: an empty file becomes a distributed training."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 20  # lines, the command included
TIMEOUT_S = 600
FILMABLE = """
    render_mode = "rgb_array"

    def render(self):
        return np.full((20, 10, 3), 25 * self.row, np.uint8)
"""


def guide() -> tuple[str, str]:
    """(program, command) of the page."""
    page = (ROOT / "docs" / "own_environment.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    return program, command


def run_beside(folder: Path, words: list[str]) -> tuple[int, str]:
    """Exit code and output of `dba3c` started in `folder`; nothing of it outlives the call."""
    process = subprocess.Popen(
        [sys.executable, "-m", "launch", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 40)
def test_the_guides_twenty_lines_train_a_game_of_ones_own(tmp_path):
    program, command = guide()
    assert len(program.splitlines()) + len(command.splitlines()) <= LONGEST
    (tmp_path / "my_game.py").write_text(program)
    name, *words = shlex.split(command)
    assert name == "dba3c"
    code, output = run_beside(tmp_path, [*words, "--run-dir", "run"])
    assert code == 0, output
    lines = [line for file in (tmp_path / "run" / "metrics").glob("worker-*.jsonl") for line in file.open()]
    games = sorted((r for r in map(json.loads, lines) if r["kind"] == "episode"), key=lambda r: r["time_s"])
    scores = [game["score"] for game in games]
    assert len(list((tmp_path / "run" / "metrics").glob("worker-*.jsonl"))) == 2
    assert sum(scores[:50]) < sum(scores[-50:])
    assert sum(scores[-50:]) / 50 > 0.8, output
    with (tmp_path / "my_game.py").open("a") as file:
        file.write(FILMABLE)
    code, output = run_beside(tmp_path, ["record", "run"])
    assert code == 0 and list((tmp_path / "run" / "videos").glob("*.mp4")), output
