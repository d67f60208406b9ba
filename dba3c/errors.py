"""The one error a user can cause: its message is one line that says what is wrong and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """Bad input. The CLI prints the message as one line, without a traceback, and exits non-zero."""


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Around whatever writes `path`: where the file system refuses, that is a UserError of one line."""
    try:
        yield
    except FileExistsError as error:  # what mkdir says of a file in a folder's place
        raise UserError(f"cannot write {path}: {error.filename} is not a directory") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
