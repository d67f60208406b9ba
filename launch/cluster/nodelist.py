"""Slurm's compressed lists: ``p[0900-0910],q12,r[1-3,7]s[01-02]`` and ``2(x3),1``."""

from __future__ import annotations

import re
from itertools import product

from dba3c.errors import UserError

MAX_NODES = 100_000


def expand(nodelist: str) -> list[str]:
    """Names of the nodes in a list, in Slurm's order: the last bracket turns fastest, then the first, the second, ….

    Raises:
        UserError: not a node list.
    """
    names: list[str] = []
    for item in _split_outside_brackets(nodelist):
        parts = re.split(r"\[([^\]]*)\]", item)
        choices = [_range_set(part, nodelist) if i % 2 else [part] for i, part in enumerate(parts)]
        if any("[" in part or "]" in part for part in parts) or not any(parts):
            raise _refusal(nodelist, f"{item!r} has unmatched brackets" if item else "an empty name")
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(names) + size > MAX_NODES:
            raise _refusal(nodelist, f"more than {MAX_NODES:,} nodes")
        names += ["".join(combination) for combination in _in_slurm_order(choices)]
    return names


def _in_slurm_order(choices: list[list[str]]) -> list[tuple[str, ...]]:
    """All combinations. Fixed parts have one choice; of the brackets the last turns fastest, then the first, …"""
    last = max((i for i, choice in enumerate(choices) if len(choice) > 1), default=0)
    slow_to_fast = [i for i in reversed(range(len(choices))) if i != last] + [last]
    combinations = product(*(choices[i] for i in slow_to_fast))
    return [tuple(part for _, part in sorted(zip(slow_to_fast, parts, strict=True))) for parts in combinations]


def parse_tasks_per_node(text: str) -> list[int]:
    """``2(x3),1`` → ``[2, 2, 2, 1]``.

    Raises:
        UserError: not of this form.
    """
    tasks: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if match is None:
            raise UserError(f"tasks per node should look like 2(x3),1; got {text!r}")
        repeats = int(match[2] or 1)
        if len(tasks) + repeats > MAX_NODES:
            raise UserError(f"tasks per node {text!r} speaks of more than {MAX_NODES:,} nodes")
        tasks += [int(match[1])] * repeats
    return tasks


def _split_outside_brackets(nodelist: str) -> list[str]:
    """``a[1,2],b`` → ``["a[1,2]", "b"]``."""
    items, depth = [""], 0
    for character in nodelist.strip():
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise _refusal(nodelist, "unmatched brackets")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    if depth:
        raise _refusal(nodelist, "unmatched brackets")
    return items


def _range_set(text: str, nodelist: str) -> list[str]:
    """``0900-0902,7`` → ``["0900", "0901", "0902", "7"]``: a range keeps the width of its first number."""
    members: list[str] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if match is None:
            raise _refusal(nodelist, f"{item!r} is no number or range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise _refusal(nodelist, f"{item!r} runs backwards")
        if int(high) - int(low) >= MAX_NODES:
            raise _refusal(nodelist, f"more than {MAX_NODES:,} nodes")
        members += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return members


def _refusal(nodelist: str, reason: str) -> UserError:
    shown = nodelist if len(nodelist) <= 80 else nodelist[:77] + "..."
    return UserError(f"not a node list: {shown!r} ({reason})")
