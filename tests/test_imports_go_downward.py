"""The three floors: launch → dba3c → param_servers, never upward."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "param_servers": {"dba3c", "launch", "gymnasium", "ale_py", "envpool", "tests"},
    "dba3c": {"launch", "tests"},
    "launch": {"tests"},
}


def called_name(call: ast.Call) -> str:
    """ "f" for f(...) and for module.f(...)."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def imported_roots(source: str) -> set[str]:
    """Top-level names that a module imports anywhere, also inside functions and as `importlib.import_module("x")`."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and node.args and called_name(node) in ("import_module", "__import__"):
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                roots.add(argument.value.split(".")[0])
    return roots


def modules() -> list[Path]:
    return sorted(path for floor in FORBIDDEN for path in (ROOT / floor).rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_downward(path: Path) -> None:
    floor = path.relative_to(ROOT).parts[0]
    upward = imported_roots(path.read_text()) & FORBIDDEN[floor]
    assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}: {floor} may not know it"


def test_the_check_sees_every_form_of_import() -> None:
    source = "import a.b\ndef f():\n    from c.d import e\n    import_module('g.h')\nfrom . import i\n"
    assert imported_roots(source) == {"a", "c", "g"}
