"""The commands of docs/studies.md, run in order as a reader would: a study, its figures, a job array, simulations."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 500


def commands() -> list[list[str]]:
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith("dba3c ")]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_command_of_the_guide_does_what_it_says(tmp_path: Path) -> None:
    said = {}
    has_optuna = importlib.util.find_spec("optuna") is not None
    guide = [words for words in commands() if has_optuna or "--search" not in words]
    for words in guide:
        if words[0] == "sweep":  # tests/launch/cli/test_sweep.py trains some; here only whether it could
            words.append("--slurm")
        done = subprocess.run(
            [sys.executable, "-m", "launch", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        said[" ".join(words)] = done.stdout
    assert len(said) == len(guide) >= 10
    figures = {path.name for path in (tmp_path / "studies" / "small" / "figures").iterdir()}
    assert {"report.html", "speed.png", "efficiency.svg", "optimizer_update_norm.svg"} <= figures
    assert (tmp_path / "figures" / "speed_data_points_per_s.png").exists()
    assert len((tmp_path / "table.csv").read_text().splitlines()) > 5
    (array,) = (text for words, text in said.items() if "--slurm" in words and words.startswith("study"))
    assert "#SBATCH --array=0-11" in array
    assert all("SIMULATED" in text for words, text in said.items() if words.startswith("simulate"))
