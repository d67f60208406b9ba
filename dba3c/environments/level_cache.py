"""DeepMind Lab's compiled maps on a directory that all actors share: a map takes seconds to compile and ms to copy.

Many actors write at once, some die half-way, and a directory may be on a network file system. So a map is written under
a name of its own and renamed, which is atomic within one file system: a reader finds all of a map or nothing.

Several users may share it. What one may not read counts as absent, and what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import uuid
from pathlib import Path

_LOG = logging.getLogger(__name__)


class LevelCache:
    """The object that `deepmind_lab.Lab(level_cache=…)` asks: `fetch(key, path)` and `write(key, path)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, key: str) -> Path:
        """Where the map of `key` lies. Keys are long and may hold any character, so their hash names the file."""
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest[2:]}.pk3"

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map of `key` to `pk3_path`; False where none can be had (Lab then compiles it and calls `write`)."""
        try:
            shutil.copyfile(self.path_of(key), pk3_path)
        except FileNotFoundError:
            return False
        except OSError as error:
            _LOG.warning("a map of the level cache cannot be read, so it is compiled: %s", error)
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map at `pk3_path` for `key`, unless another actor already did.

        Where that is refused (another user's directory, a disk that is full or only to be read) it costs a warning and,
        next time, a compilation: never the actor.
        """
        path = self.path_of(key)
        name = path.parent / f".partial-{uuid.uuid4().hex}"
        with open(pk3_path, "rb") as compiled:
            try:
                if path.exists():
                    return
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(name, "xb") as partial:  # not mkstemp, whose files no other user may read
                    shutil.copyfileobj(compiled, partial)
                    partial.flush()
                    os.fsync(partial.fileno())
                os.replace(name, path)
            except OSError as error:
                _LOG.warning("the level cache does not keep a map: %s", error)
            finally:
                with contextlib.suppress(OSError):  # it is gone when all went well
                    os.unlink(name)
