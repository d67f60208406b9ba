"""An option is declared once, as a field of a configuration; its metadata say its short names and who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, field
from typing import Any


def option(default: Any, *, short: str = "", **read_by: str) -> Any:
    """A dataclass field, as `field(default=default)`.

    Args:
        short: further names on the command line: ``option(1, short="workers learners")``.
        read_by: with which values of other options somebody reads this one: ``option(None, exchange="async")``,
            ``option(40, algorithm="r2d2 sac")``. All of several have to hold.
    """
    readers = {name: tuple(values.split()) for name, values in read_by.items()}
    return field(default=default, metadata={"short": tuple(short.split()), "read_by": readers})


def refusal_of_unread(options: Iterable[Field[Any]], values: Mapping[str, object]) -> str:
    """One line about those of these options that nobody reads, and whose they are; "" when all are read.

    Args:
        values: of the options that `read_by` speaks of; one that is not among them is not asked for.
    """
    unread: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for each in options:
        asked = {name: them for name, them in each.metadata.get("read_by", {}).items() if name in values}
        if any(values[name] not in them for name, them in asked.items()):
            readers = " and ".join(f"{name} {' or '.join(them)}" for name, them in asked.items())
            unread.setdefault(readers, []).append(each.name)
            given[readers] = " and ".join(f"{name} is {values[name]}" for name in asked)
    for readers, names in unread.items():
        what = "an option" if len(names) == 1 else "options"
        return f"{', '.join(sorted(names))}: {what} of {readers} only, and this run's {given[readers]}"
    return ""
