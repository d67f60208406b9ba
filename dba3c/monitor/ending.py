"""When a run is over, as seen by its monitor."""

from __future__ import annotations

import time
from collections.abc import Callable

from dba3c.errors import UserError
from dba3c.run_folder import RunFolder

_SETTLED_S = 2.0
_UNREADABLE_FOLDER_S = 60.0


class RunIsOver:
    """Whether nothing more is to come: its end is noted, its launch is dead, or it was asked to stop and went silent.

    The launch waits for its monitor before it notes the end, hence the last case. A folder that cannot be read for a
    while (a shared file system) is not an end.

    Args:
        silent_s: seconds since the last new record.
    """

    def __init__(self, run: RunFolder, silent_s: Callable[[], float]) -> None:
        self._run = run
        self._silent_s = silent_s
        self._unreadable_since_s: float | None = None

    def __call__(self) -> bool:
        try:
            ending = self._run.stop_reason() is not None and self._silent_s() > _SETTLED_S
            over = ending or self._run.status() != "live"
        except (UserError, OSError):
            since_s = self._unreadable_since_s = self._unreadable_since_s or time.monotonic()
            return time.monotonic() - since_s > _UNREADABLE_FOLDER_S
        self._unreadable_since_s = None
        return over
