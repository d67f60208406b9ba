"""The examples of docs/python.md, run as one script by a reader who has the other guides' modules beside it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dba3c

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 40)
def test_every_example_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    has_pygame = importlib.util.find_spec("pygame") is not None
    examples = [block for block in blocks("python.md") if has_pygame or "dba3c.record" not in block]
    (tmp_path / "my_game.py").write_text(blocks("own_environment.md")[0])
    (tmp_path / "my_nets.py").write_text(blocks("own_network.md")[0])
    (tmp_path / "results").symlink_to(ROOT / "results")
    (tmp_path / "script.py").write_text("\n".join(examples))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for said in ("unknown option 'wrokers'; did you mean workers", "my_game:Catch my_nets:skip"):
        assert said in done.stdout
    statuses = {path.name: dba3c.read(path).status for path in (tmp_path / "runs").iterdir()}
    trained = dict.fromkeys(("from_python", "catch", "catch_ppo"), "finished")
    assert statuses == trained | {"background": "stopped"}
