"""Pages of `results/`: people write the prose, measurements the tables and the line that says where they were made."""

import csv
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from dba3c.runs import host_facts
from dba3c.runs.files import write_atomically
from param_servers.line_file import cut_torn_tail, whole_lines

_MADE = re.compile(r"^\d{4}-\d\d-\d\d, \d+ cores of .*?commit \w+(?: with local changes)?\.", re.MULTILINE)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    first, *others = ("|" + "".join(f" {cell} |" if cell != "" else " |" for cell in line) for line in [columns, *rows])
    return "\n".join([first, "|" + "---|" * len(columns), *others])


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Of a .csv, where every cell is text, or of a file of JSON lines, without a torn last one; none where it is not
    there."""
    if not path.exists():
        return []
    if path.suffix == ".csv":
        return list(csv.DictReader(StringIO(path.read_text(encoding="utf-8"))))
    return [json.loads(line) for line in whole_lines(path)]


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """A JSON line more; what a kill or a full disk has torn before it is cut off."""
    with path.open("a+", encoding="utf-8") as file:
        cut_torn_tail(file.fileno())
        file.write(json.dumps(row) + "\n")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A .csv; its columns are those of any row, in their order."""
    text = StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def facts(command: str) -> dict[str, Any]:
    """When, where, with what and by which command something is measured now."""
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "host": host_facts.host(),
        "versions": host_facts.versions(),
        "source": host_facts.git_commit(),
    }


def made_by(facts: Mapping[str, Any]) -> str:
    """The line about when, where and with what: from `facts`, or of a life in a run's meta.json."""
    date = facts.get("date") or time.strftime("%Y-%m-%d", time.gmtime(facts["started_s"]))
    host, versions, source = facts["host"], facts["versions"], facts["source"]
    commit = str(source.get("commit", "unknown"))[:12] + (" with local changes" if source.get("dirty") else "")
    cores = facts.get("cores", host["usable_cores"])  # a run's life knows those of all its hosts
    where = f"{cores:g} cores of {host['processor']}"
    return f"{date}, {where}, Python {versions['python']}, torch {versions['torch']}, commit {commit}."


def processors(metas: Iterable[Mapping[str, Any]]) -> str:
    """Who computed runs (`meta.json` of each): how many of their launches, where there are several processors."""
    lives = Counter(life["host"]["processor"] for meta in metas for life in meta["lives"])
    return ", ".join(name if len(lives) == 1 else f"{name} ({number})" for name, number in lives.most_common())


def renew(page: Path, made: str, *tables: str) -> None:
    """Puts new tables in the place of those with the same columns, and `made` where it was said of them: in the first
    such line after the last of them, or else the last before it ("": it stays). Other lines tell of other tables.

    Raises:
        UserError: the page has no such table.
    """
    text, end = page.read_text(encoding="utf-8"), 0
    for table in tables:
        header = table.partition("\n")[0]
        old = re.search(rf"^{re.escape(header)}\n(?:\|.*(?:\n|\Z))*", text, re.MULTILINE)
        if old is None:
            raise UserError(f"{page} has no table {header}")
        text = text[: old.start()] + table + "\n" + text[old.end() :]
        end = old.start() + len(table)
    lines = list(_MADE.finditer(text))
    if lines and made:
        line = next((line for line in lines if line.start() >= end), lines[-1])
        text = text[: line.start()] + made + text[line.end() :]
    page.write_text(text, encoding="utf-8")
