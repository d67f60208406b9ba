"""When a run is over, as seen by its monitor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from dba3c.errors import UserError
from dba3c.runs.run_folder import RunFolder
from param_servers.errors import RunBroken

_SETTLED_S = 2.0
_UNREADABLE_FOLDER_S = 60.0
EVALUATION_EXTRA_S = 60.0
"""Silence of evaluators beyond their budget: the last checkpoint is written before, and loaded."""


@contextlib.contextmanager
def evaluating(folder: RunFolder, rank: int, say: Callable[[str], None]) -> Iterator[None]:
    """Around an evaluator's life: the monitor of a run that has finished waits for what it still writes."""
    name = f"evaluator-{rank}"
    try:
        folder.publish(name, {"plays": True})
        yield
    finally:
        try:
            folder.publish(name, {"plays": False})
        except UserError as error:  # the monitor's patience has an end
            say(str(error))


def evaluators_play(folder: RunFolder) -> bool:
    """Whether an evaluator of this life is not done yet."""
    names = (path.stem for path in folder.rendezvous.glob("evaluator-*.json"))
    return any((folder.published(name) or {}).get("plays") for name in names)


class RunIsOver:
    """Whether nothing more is to come: its end is noted, its launch is dead, or it was asked to stop and went silent.

    The launch waits for its monitor before it notes the end, hence the last case; evaluators may play for a while after
    a run that has had what it was to have. A folder that cannot be read for a while (a shared file system) is no end:
    for longer, it is a fault, after which the monitor is started again.

    Args:
        silent_s: seconds since the last new record.
        evaluation_s: bound of the silence in which evaluators may play on.

    Raises:
        RunBroken: when called: the folder could not be read for a minute.
    """

    def __init__(self, run: RunFolder, silent_s: Callable[[], float], evaluation_s: float = 0.0) -> None:
        self._run = run
        self._silent_s = silent_s
        self._evaluation_s = evaluation_s
        self._unreadable_since_s: float | None = None

    def __call__(self) -> bool:
        try:
            ending = self._run.stop_reason() is not None and self._silent_s() > _SETTLED_S
            over = (ending and not self._evaluators_play()) or self._run.status() != "live"
        except (UserError, OSError) as error:
            since_s = self._unreadable_since_s = self._unreadable_since_s or time.monotonic()
            if time.monotonic() - since_s > _UNREADABLE_FOLDER_S:
                raise RunBroken(f"the run cannot be read for {_UNREADABLE_FOLDER_S:g} s: {error}") from error
            return False
        self._unreadable_since_s = None
        return over

    def _evaluators_play(self) -> bool:
        return self._silent_s() < self._evaluation_s and self._run.has_finished() and evaluators_play(self._run)
