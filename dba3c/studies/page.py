"""Pages of `results/`: people write the prose, measurements the tables and the line that says where they were made."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dba3c.errors import UserError

_MADE = re.compile(r"^\d{4}-\d\d-\d\d, \d+ cores of .*?commit \w+(?: with local changes)?\.", re.MULTILINE)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    first, *others = ("|" + "".join(f" {cell} |" if cell != "" else " |" for cell in line) for line in [columns, *rows])
    return "\n".join([first, "|" + "---|" * len(columns), *others])


def made_by(date: str, host: Mapping[str, Any], versions: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    """When, where and with what: from a run's meta.json, or `dba3c.runs.host_facts`."""
    commit = str(source.get("commit", "unknown"))[:12] + (" with local changes" if source.get("dirty") else "")
    where = f"{host['usable_cores']} cores of {host['processor']}"
    return f"{date}, {where}, Python {versions['python']}, torch {versions['torch']}, commit {commit}."


def made_by_life(life: Mapping[str, Any]) -> str:
    """The same of a run that was measured: of a life in its meta.json."""
    date = time.strftime("%Y-%m-%d", time.gmtime(life["started_s"]))
    return made_by(date, life["host"], life["versions"], life["source"])


def renew(page: Path, made: str, *tables: str) -> None:
    """Puts new tables in the place of those with the same columns, and `made` where it was said before.

    Raises:
        UserError: the page has no such table.
    """
    text = page.read_text(encoding="utf-8")
    for table in tables:
        header = table.partition("\n")[0]
        old = re.search(rf"^{re.escape(header)}\n(?:\|.*(?:\n|\Z))*", text, re.MULTILINE)
        if old is None:
            raise UserError(f"{page} has no table {header}")
        text = text[: old.start()] + table + "\n" + text[old.end() :]
    page.write_text(_MADE.sub(lambda _: made, text), encoding="utf-8")
