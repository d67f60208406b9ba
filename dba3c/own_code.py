"""Code of the user's own, found by its name "package.module:attribute": an environment, a network, a loss.

In: the name. Out: what it names, imported from where the command was started or from what is installed.
"""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from dba3c.errors import UserError

ANYTHING = (Exception, SystemExit)
"""What a stranger's code can raise: a script may exit, with code 0."""


class RaisedInProcess(RuntimeError):
    """What was raised in a process of its own: its type, and what it said."""


def ignore_here(*signals: signal.Signals) -> None:
    """Ignore signals in this process, where own code plays, but not in what that code starts: a program would inherit
    SIG_IGN, yet no handler; a fork inherits handlers, so that of SIGTERM is undone in it, whatever it is here."""
    for signum in signals:
        signal.signal(signum, lambda *_: None)
        signal.siginterrupt(signum, False)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def find(name: str) -> Any:
    """What "package.module:attribute" names, which can be called.

    Raises:
        UserError: there is no such module or attribute, importing it failed, or it cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    found: Any = module_of(name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = getattr(found, "__dict__", {})  # a number has none
            functions = ", ".join(each for each in names if callable(getattr(found, each)) and each[0] != "_")
            raise UserError(f"{name}: {module_name} has no {part}; it has {functions or 'no function'}")
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{name}: {attribute} is not a function")
    return found


def module_of(name: str) -> ModuleType:
    """The module of "package.module:attribute", imported. Raises UserError: it is not there, or raised itself."""
    module_name = name.partition(":")[0]
    here = str(Path.cwd())
    if here not in sys.path:  # a console script, unlike `python -m`, does not search the current directory
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            file, _, attribute = name.partition(".py:")  # a file's name is no module's
            hint = f"; did you mean {file}:{attribute}?" if attribute else ""
            raise UserError(f"{name}: no module named {error.name} here ({here}) or installed{hint}") from error
        raise UserError(f"{name}: {module_name} needs the module {error.name}, which is not installed") from error
    except ANYTHING as error:
        importing = ("<frozen importlib", str(Path(importlib.__file__).parent))
        frames = [frame for frame in _not_ours(error) if not frame.filename.startswith(importing)]  # first the module's
        raise UserError(f"{name}: importing {module_name} raised {one_line(error)}{_where(frames[:1])}") from error


def name_of(thing: Any) -> str:
    """The "package.module:attribute" by which any process finds a function or class.

    Raises:
        UserError: it is in no module that can be imported, or not by its own name: an instance would be made anew.
    """
    module, name = getattr(thing, "__module__", "__main__"), getattr(thing, "__qualname__", type(thing).__name__)
    if module == "__main__" or "<" in name:
        raise UserError(f"{name} cannot be imported by the run's processes: define it in a module, under a name")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing and found != thing:
        by_name = isinstance(thing, (type, FunctionType, MethodType))
        what = f"{module}:{name}" if by_name else f"an instance of {type(thing).__name__}"
        raise UserError(
            f"{what} is not what the run's processes would import by that name: give a function or class of a module, "
            "no instance and no partial"
        )
    return f"{module}:{name}"


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Around calls of what "package.module:attribute" names: what they raise is a UserError of one line, with where, if
    that is not in this package."""
    try:
        yield
    except UserError:
        raise
    except ANYTHING as error:
        not_ours, file = _not_ours(error), module_of(name).__file__
        of_the_module = [frame for frame in not_ours if frame.filename == file]
        where = _where((of_the_module or not_ours)[-1:])
        raise UserError(f"{name} raised {one_line(error)}{where}") from error


def _not_ours(error: BaseException) -> list[traceback.FrameSummary]:
    """Where it came through, outermost first, but for this package."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not Path(frame.filename).is_relative_to(Path(__file__).parent)]


def _where(frames: Sequence[traceback.FrameSummary]) -> str:
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in frames)


def one_line(error: BaseException) -> str:
    """The error's type and what it says."""
    try:
        said = " ".join(str(error).split())
    except ANYTHING:  # a stranger's own
        said = "what cannot be said"
    return said if isinstance(error, RaisedInProcess) else f"{type(error).__name__}: {said}"
