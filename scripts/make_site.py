"""`make docs`: the pages of the repository as a site in build/site, by Zensical; a link that leads nowhere fails it.

Pages keep their places, so their links hold as they do on GitHub. Added are what cannot be read there: the reference,
made from the code, and the code that pages link to.
"""

from __future__ import annotations

import contextlib
import html
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

import dba3c
import param_servers
from dba3c.config import TrainConfig
from launch.cli import main as command_line
from launch.cli.options import docstrings_of_fields, parse_train
from launch.cli.presets import PRESETS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build" / "site-source"
PAGES = ("*.md", "docs/**/*.md", "results/**/*.md", "param_servers/*.md")
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)]*)?(\))")
CODE = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml"}
COMMAND_TIMEOUT_S = 300


def write(page: str, text: str) -> None:
    path = SOURCE / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def collect() -> None:
    """Every page, with the files that its links and pictures lead to."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        text = LINK.sub(lambda found, page=page: _followed(found, page), page.read_text(encoding="utf-8"))
        write(str(page.relative_to(ROOT)), text)
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        write(str(notebook.relative_to(ROOT).with_suffix(".md")), "\n\n".join(cells(notebook)))


def _followed(link: re.Match[str], page: Path) -> str:
    """A page's link, led to what the site has of its target."""
    opening, target, anchor, closing = link.groups()
    path = (page.parent / target).resolve()
    if path.is_dir():
        target, path = f"{target.rstrip('/')}/README.md", path / "README.md"
    if not path.is_relative_to(ROOT) or not path.exists():
        sys.exit(f"{page.relative_to(ROOT)} links to {target}, which is not there")
    place = str(path.relative_to(ROOT))
    if path.suffix == ".ipynb":
        return f"{opening}{Path(target).with_suffix('.md')}{anchor or ''}{closing}"
    if path.suffix in CODE:
        write(
            f"{place}.md",
            f"# {path.name}\n\n`{place}`\n\n```{CODE[path.suffix]}\n{path.read_text(encoding='utf-8')}\n```\n",
        )
        return f"{opening}{target}.md{closing}"
    if path.suffix != ".md":
        (SOURCE / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, SOURCE / place)
    return f"{opening}{target}{anchor or ''}{closing}"


def cells(notebook: Path) -> Iterator[str]:
    """A notebook's cells as Markdown."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        yield f"```python\n{text}\n```" if cell["cell_type"] == "code" else text


def commands() -> str:
    """The page of all commands, from their own help."""
    parts = [f"# Command line\n\n```\n{command_line.HELP}```\n"]
    for name in command_line.COMMANDS:
        if name == "train":
            parts.append("## dba3c train\n\nIts options have [a page of their own](options.md).\n")
        else:
            parts.append(f"## dba3c {name}\n\n```\n{_help_of(name)}\n```\n")
    return "\n".join(parts)


def _help_of(name: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        command_line.main([name, "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()).strip()


def options() -> str:
    """The page of all options of `dba3c train`: each field of the configuration, and what each preset makes of it."""
    presets = {name: parse_train([name]).config(2) for name in PRESETS}
    parts = ["# Options of `dba3c train`\n", inspect.cleandoc(_OPTIONS_HEAD)]
    for group, kind in get_type_hints(TrainConfig).items():
        docs = docstrings_of_fields(kind)
        parts.append(f"\n## {group.capitalize()}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n")
        for option in fields(kind):
            names = " ".join(
                f"`--{name.replace('_', '-')}`" for name in (option.name, *option.metadata.get("short", ()))
            )
            of_presets: dict[str, list[str]] = {}
            for name, config in presets.items():
                value = str(getattr(getattr(config, group), option.name))
                if value != str(_default(option)):
                    of_presets.setdefault(value, []).append(name)
            told = "; ".join(f"{', '.join(them)}: `{value}`" for value, them in of_presets.items())
            readers = option.metadata.get("read_by", {})
            read = "; ".join(f"{name} {' or '.join(values)}".strip() for name, values in readers.items())
            parts.append(f"{names}\n: {html.escape(docs[option.name], quote=False)} Default `{_default(option)}`")
            parts[-1] += f"{f'; {told}' if told else ''}." + (f" *Only with {read}.*" if read else "") + "\n"
    return "\n".join(parts)


_OPTIONS_HEAD = """
    Each is a field of the configuration, and stands under the same name in a run's `config.json` and in
    `dba3c.train(...)`, with `_` for `-`. What a preset has otherwise, on a machine of two cores, is said behind the
    default.
"""


def _default(option: Field[Any]) -> Any:
    return option.default if option.default is not MISSING else option.default_factory()  # type: ignore[misc]


def python_names(package: Any, head: str) -> str:
    """The page of a package's public names; mkdocstrings fills in their docstrings."""
    public = {name: getattr(package, name) for name in package.__all__ if name != "__version__"}
    functions_first = sorted(public, key=lambda name: inspect.isclass(public[name]))
    shown = "    options:\n      heading_level: 2\n"
    return "\n".join([head, *(f"::: {public[name].__module__}.{name}\n{shown}" for name in functions_first)])


def main() -> int:
    """Collect, generate, and let Zensical make the site; its exit code."""
    collect()
    write("reference/commands.md", commands())
    write("reference/options.md", options())
    write(
        "reference/python.md",
        python_names(dba3c, "# `dba3c`\n\nWhat `import dba3c` gives; [how it is used](../docs/python.md).\n"),
    )
    write(
        "reference/param_servers.md",
        python_names(
            param_servers, "# `param_servers`\n\n[The protocol](../param_servers/README.md), and its public names.\n"
        ),
    )
    zensical = Path(sys.executable).parent / "zensical"
    return subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, timeout=COMMAND_TIMEOUT_S).returncode


if __name__ == "__main__":
    sys.exit(main())
