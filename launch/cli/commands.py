"""The commands by name, and the one place where a module is imported only when it is needed.

Help is quick, and only who computes has torch: the ranks of a cluster, which only start processes, have not.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence

from dba3c.errors import UserError

COMMANDS = {
    "train": "launch.cli.train:train",
    "resume": "launch.cli.train:resume",
    "evaluate": "launch.cli.evaluate:evaluate",
    "record": "launch.cli.evaluate:record",
    "watch": "launch.cli.runs:watch",
    "stop": "launch.cli.runs:stop",
    "export": "launch.cli.runs:export",
    "study": "launch.cli.study:study",
    "plot": "launch.cli.plot:plot",
    "simulate": "launch.cli.simulate:simulate",
    "sbatch": "launch.cli.sbatch:sbatch",
}
"""Each command's function."""

HERE = "launch.local.run:train"
"""What `dba3c train` is where it is no rank of many."""


def command(name: str) -> Callable[[Sequence[str]], int]:
    """The function behind a command's name. Raises UserError: there is none; the close ones are named."""
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS) or list(COMMANDS)
        raise UserError(f"no command is called {name!r}; there are {', '.join(close)}")
    return loaded(COMMANDS[name])


def loaded(name: str) -> Callable[..., int]:
    """The function that a name like ``launch.cli.train:train`` means."""
    module, function = name.split(":")
    found: Callable[..., int] = getattr(importlib.import_module(module), function)
    return found
