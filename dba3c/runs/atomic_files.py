"""Small files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from dba3c.errors import UserError


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a crash, sees the old content or the new, never a part."""
    temporary = _temporary_beside(path, text, 0o644)
    try:
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_once(path: Path, text: str, mode: int = 0o644) -> bool:
    """Like write_atomically, but the first writer wins; returns whether that was this one."""
    temporary = _temporary_beside(path, text, mode)
    try:
        os.link(temporary, path)  # atomic on NFS too, where O_EXCL need not be
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        if path.exists():  # a file system without hard links: first come, as well as it can
            return False
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _temporary_beside(path: Path, text: str, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return temporary
