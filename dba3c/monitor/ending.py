"""When a run is over, as seen from outside it."""

from __future__ import annotations

import time

from dba3c.errors import UserError
from dba3c.run_folder import RunFolder

_UNREADABLE_FOLDER_S = 60.0


class RunIsOver:
    """Whether a run has ended. A folder that cannot be read for a while (a shared file system) is not an end."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._unreadable_since_s: float | None = None

    def __call__(self) -> bool:
        try:
            over = self._run.status() != "live"
        except (UserError, OSError):
            since_s = self._unreadable_since_s = self._unreadable_since_s or time.monotonic()
            return time.monotonic() - since_s > _UNREADABLE_FOLDER_S
        self._unreadable_since_s = None
        return over
