"""Small files that are there whole or not at all, and what can be said of a path without lying."""

import contextlib
import errno
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from dba3c.errors import UserError, writing


def resolved(path: str | os.PathLike[str]) -> Path:
    """Absolute, without ~ and symbolic links. Raises UserError: nobody has that name, or links lead in a circle."""
    try:
        return Path(path).expanduser().resolve()
    except (RuntimeError, TypeError, ValueError) as error:  # what is no path, or has a zero byte in it
        raise UserError(f"cannot read {path}: {error}") from error


def printable(text: str) -> str:
    """A name for a page or a tracker, with escapes for bytes of a file's name that are no UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader, or a crash, sees the old content or the new, never a part.

    Raises:
        UserError: the file system refuses.
    """
    with _written_beside(path, content, 0o644) as temporary:
        os.replace(temporary, path)


def write_once(path: Path, text: str, mode: int = 0o644) -> bool:
    """Like write_atomically, but the first writer wins; returns whether that was this one."""
    with _written_beside(path, text, mode) as temporary:
        try:
            os.link(temporary, path)  # atomic on NFS too, where O_EXCL need not be
        except FileExistsError:  # which NFS may also say of a request that was repeated, and was granted at first
            return temporary.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            if path.exists():  # a file system without hard links: first come, as well as it can
                return False
            os.replace(temporary, path)
    return True


@contextlib.contextmanager
def _written_beside(path: Path, content: str | bytes, mode: int) -> Iterator[Path]:
    """The content on the disk, in a file beside `path` that is gone afterwards. Until then OSErrors are UserErrors."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with writing(path):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
    finally:
        with contextlib.suppress(OSError):  # a disk that refused the file refuses this too, and was named
            temporary.unlink()


def is_there(path: Path) -> bool:
    """Raises UserError: it cannot be looked at."""
    for again in (True, False):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if again:
                look_anew(path.parent)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        else:
            return True
    return False


def look_anew(folder: Path) -> None:
    """NFS believes for up to a minute that what was not there still is not, unless the folder is opened."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def is_read_only(folder: Path) -> bool:
    """Whether its file system takes nothing from anybody: heartbeats that do not come tell nothing there."""
    probe = folder / f".probe-{socket.gethostname()}-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def check_writable(folder: Path) -> None:
    """Make the folder, write a file there, delete it. Raises UserError where that cannot be: rather now than later."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{socket.gethostname()}-{os.getpid()}"
        write_atomically(probe, "x" * 4096)
        probe.unlink(missing_ok=True)


def checkpoint_steps(checkpoints: Path) -> list[int]:
    """Steps of the checkpoints in a run's `checkpoints` folder, oldest first, valid or not."""
    try:
        names = [entry.name for entry in checkpoints.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    steps = (name.removeprefix("step-") for name in names if name.startswith("step-"))
    return sorted(int(step) for step in steps if step.isdigit())
