"""DeepMind Lab's compiled maps on a directory that all actors share: a map takes seconds to compile and ms to copy.

Many actors write at once, some die half-way, and a directory may be on a network file system. So a map is written under
a name of its own and renamed, which is atomic within one file system: a reader finds all of a map or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path


class LevelCache:
    """The object that `deepmind_lab.Lab(level_cache=…)` asks: `fetch(key, path)` and `write(key, path)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, key: str) -> Path:
        """Where the map of `key` lies. Keys are long and may hold any character, so their hash names the file."""
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest[2:]}.pk3"

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map of `key` to `pk3_path`; False where there is none (Lab then compiles it and calls `write`)."""
        try:
            shutil.copyfile(self.path_of(key), pk3_path)
        except FileNotFoundError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map at `pk3_path` for `key`, unless another actor already did."""
        path = self.path_of(key)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as partial, open(pk3_path, "rb") as compiled:
                shutil.copyfileobj(compiled, partial)
                partial.flush()
                os.fsync(partial.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
