"""A tree of options as flat names, e.g. "optimizer/learning_rate"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat_names(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """(name, value) of every leaf; what is no plain value (null, a list) is given as text."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_names(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value if isinstance(value, (str, int, float, bool)) else str(value)
