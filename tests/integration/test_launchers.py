"""Real torchrun, mpirun and horovodrun start the ranks of a real run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
TRAIN = ["train", "CartPole-v1", "--servers", "1", "--envs-per-worker", "2", "--total-frames", "4000"]
AS_ROOT = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
LAUNCHERS = {
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node", "3", "-m", "launch"],
    "mpirun": ["mpirun", *AS_ROOT, "-n", "3", str(BIN / "dba3c")],
    "horovodrun": ["horovodrun", "--gloo", "-np", "3", "-H", "localhost:3", str(BIN / "dba3c")],
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_s_ranks_train_together(name: str, tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [*LAUNCHERS[name], *TRAIN]
    if shutil.which(command[0], path=environ["PATH"]) is None:
        pytest.skip(f"{command[0]} is not installed")
    answer = subprocess.run(
        command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
    )
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said
    assert "3 = 1 server + 2 workers (2 gradients + 0 backup)" in said
    (run_dir,) = (tmp_path / "runs").iterdir()
    (life,) = json.loads((run_dir / "meta.json").read_text())["lives"]
    assert life["launcher"] == name
    assert life["ended"]["outcome"] == "finished"
    lines = (run_dir / "audit" / "commits.jsonl").read_text().splitlines()
    members = [record["members"] for record in map(json.loads, lines) if record["kind"] == "commit"]
    assert members
    assert all(len(step) == 2 for step in members)
