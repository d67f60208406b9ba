"""`make docs` and the notebook: a stranger reads and runs them, so they are built and run here."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import dba3c
from dba3c.config import option_names
from launch.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
TIMEOUT_S = 280

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("zensical") is None, reason="the extra docs is not installed"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed, or would be, so that a build leaves nothing here."""
    copy = tmp_path_factory.mktemp("checkout")
    words = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listed:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    words = (sys.executable, "scripts/make_site.py")
    return subprocess.run(words, cwd=checkout, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))


@pytest.mark.timeout(TIMEOUT_S + 20)
def test_the_site_has_every_guide_command_option_and_public_name(checkout: Path) -> None:
    done = build(checkout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    site = checkout / "build" / "site"
    for guide in (ROOT / "docs").glob("*.md"):
        assert (site / "docs" / guide.stem / "index.html").exists()
    commands, options, names = (
        text_of(site / "reference" / page / "index.html") for page in ("commands", "options", "python")
    )
    assert all(f"dba3c {command}" in commands for command in COMMANDS) and "--games" in commands
    assert all(f"--{option.replace('_', '-')}" in options for option in option_names())
    assert all(name in names for name in dba3c.__all__ if name != "__version__")
    assert "Play full games with a checkpoint of a run" in names


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("link", ["no_such_page.md", "python.md#no-such-heading"])
def test_a_link_that_leads_nowhere_fails_the_build(link: str, checkout: Path) -> None:
    page = checkout / "docs" / "broken.md"
    page.write_text(f"# Broken\n\n[there]({link})\n", encoding="utf-8")
    try:
        done = build(checkout)
    finally:
        page.unlink()
    assert done.returncode != 0
    assert "docs/broken.md" in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def test_notebooks_are_committed_without_outputs() -> None:
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    read = nbformat.read(notebook, as_version=4)
    for cell in read.cells:  # less training: that every cell runs is tested, not how well it learns
        cell.source = re.sub(r"total_frames=[\d_]+", "total_frames=6_000", cell.source)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    client = NotebookClient(read, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute(env=environ)
    statuses = {path.name: dba3c.read(path).status for path in (tmp_path / "runs").iterdir()}
    assert statuses == {"first_steps": "finished", "huber": "finished"}
    images = [
        output for cell in read.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(images) == 3
    shown = [
        output["data"]["text/html"]
        for cell in read.cells
        for output in cell.get("outputs", [])
        if "data" in output and "text/html" in output["data"]
    ]
    assert any("<progress" in each and 'value="1' in each for each in shown)  # a training's bar, at its end
