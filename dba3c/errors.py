"""The one error a user can cause, its message one line that says what is wrong and what to do; warnings; exit codes."""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

USER_ERROR_EXIT = 2
"""Bad input: starting the process again would not help."""
RUN_BROKEN_EXIT = 1
"""Like any other crash (a full disk, a game that keeps failing): who supervises a role may start it again."""
RUN_ENDED_BROKEN_EXIT = 3
"""The run has ended, not as asked (a server did not come back, too few workers are left): it would end so again."""
RUN_TAKEN_OVER_EXIT = 4
"""Another launch has taken the run folder (dba3c.runs.lock), it is deleted, or a newer process has this one's place."""


class UserError(Exception):
    """Bad input. The CLI prints the message as one line, without a traceback, and exits non-zero."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """What to say after a name that is none: "did you mean ppo?", or else `otherwise`, or all that there are."""
    known = list(known)
    close = difflib.get_close_matches(name, known, cutoff=0.7)
    return f"did you mean {' or '.join(close)}?" if close else otherwise or f"there are {', '.join(known) or 'none'}"


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Around whatever writes `path`: where the file system refuses, that is a UserError of one line."""
    try:
        yield
    except FileExistsError as error:  # what mkdir says of a file in a folder's place
        raise UserError(f"cannot write {path}: {error.filename} is not a directory") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def warn_on_stderr(message: str) -> None:
    """One line about what could not be read or written, where that does not matter to what is being done."""
    # nor does it matter whether anybody reads this; RuntimeError: a signal's handler came within another line
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        print(f"dba3c: warning: {message}", file=sys.stderr, flush=True)


def prefixed(prefix: str, warn: Callable[[str], None]) -> Callable[[str], None]:
    """`warn` for lines about one thing, which is named before each of them."""
    return lambda line: warn(f"{prefix}: {line}")
