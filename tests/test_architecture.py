"""The house is as docs/architecture.md and the contracts in pyproject.toml say."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), ROOT / "param_servers/README.md"]
)
PAGES = sorted({*DOCS, *(ROOT / "results").rglob("*.md"), *(ROOT / "docs").rglob("*.md")})
PACKAGES = ("param_servers", "dba3c", "launch")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def test_imports_only_go_down_between_and_inside_the_packages() -> None:
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if lint is None:
        pytest.skip("import-linter is not installed")
    checked = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def named(text: str) -> set[str]:
    """The files, folders and dotted names of our own packages that a page puts in backticks or links to."""
    words = set(re.findall(r"`([^`\s]+)`", text)) | set(re.findall(r"\]\(([^)#\s]+)", text))
    ours = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:[/.][\w/.]+)?")
    return {word.removesuffix("()") for word in words if ours.fullmatch(word.removesuffix("()"))}


def exists(name: str) -> bool:
    """A path from the root, or a module, or a name defined in one (`dba3c.runs.lock.RunLock`) or loaded by it."""
    if "/" in name:
        return (ROOT / name).exists()
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        source = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
        if source is not None:
            inside = parts[length:]
            text = source.read_text()
            return all(
                re.search(rf"(?:class|def) {word}\b|^\s*(?:self\.)?{word}\b.*[:=]|^ *\"{word}\": ", text, re.M)
                for word in inside
            )
    return False


@pytest.mark.parametrize("page", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_name_of_ours_that_a_page_mentions_exists(page: Path) -> None:
    missing = {name for name in named(page.read_text()) if not exists(name)}
    assert not missing, f"{page.relative_to(ROOT)} names what is not there: {sorted(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_or_to_a_folder_that_has_a_page(page: Path) -> None:
    targets = [page.parent / link for link in re.findall(r"\]\(([^):#\s]+)(?:#[^)]*)?\)", page.read_text())]
    missing = [str(path) for path in targets if not (path.is_file() or (path / "README.md").is_file())]
    assert not missing, f"{page.relative_to(ROOT)} links to what is not there, or has no README.md: {missing}"


def test_the_check_of_names_can_fail() -> None:
    assert (
        exists("dba3c/workers/worker.py") and exists("dba3c.workers.worker.run_worker") and exists("param_servers.wire")
    )
    assert not exists("dba3c/workers/wroker.py")
    assert not exists("dba3c.workers.worker.run_wroker")
    assert not exists("dba3c.trian.worker")


def pickling(source: str) -> set[str]:
    """What a module uses that pickles, or loads what may be a pickle; sockets have a send and recv of bytes, too."""
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in imports
        for alias in node.names
    }
    used = imported | {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = {name for name in imported if name.split(".")[0] in PICKLES}
    found |= {name for name in used if re.search(r"^torch\.(load|save)$|_object(_list)?$", name)}
    if any(re.search(r"\.(Connection|Pipe)$", name) for name in used):
        found |= {name for name in used if re.search(r"\.(send|recv)$", name)}
    return found


def test_no_module_pickles_or_loads_a_pickle() -> None:
    found = {str(path.relative_to(ROOT)): pickling(path.read_text(encoding="utf-8")) for path in MODULES}
    assert MODULES and not {name: what for name, what in found.items() if what}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch; torch.load('a')",
        "from torch import save",
        "torch.distributed.broadcast_object_list([1])",
        "from multiprocessing.connection import Pipe; ours, theirs = Pipe(); ours.send(1)",
        "import multiprocessing; multiprocessing.get_context('fork').Pipe()[0].recv()",
    ],
)
def test_the_check_of_pickles_can_fail(source: str) -> None:
    assert pickling(source)
    assert not pickling("import socket; socket.socketpair()[0].send(b'')")
