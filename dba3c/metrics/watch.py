"""`dba3c watch RUN`, and the terminal of a launch: follows a run's records and shows them in a view.

It works on the run's machine or over a shared file system.
"""

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics.facts import RunFacts
from dba3c.metrics.reader import RunReader
from dba3c.metrics.summary import RunSummary
from dba3c.metrics.views import View, terminal_view
from dba3c.runs.ending import UNREADABLE_S
from dba3c.runs.folder import RunFolder

_LAST_LOOK_S = 10.0


class Watcher:
    """Shows a run: each `look` reads what is new and redraws. What cannot be read is said once for each file, and
    looked at again: a shared file system may be away for a while.

    Raises UserError when the folder is a broken one.
    """

    def __init__(self, run: RunFolder, view: View | None = None) -> None:
        self.run = run
        self._summary = RunSummary(RunFacts.of(run))
        self._reader = RunReader(run, warn_on_stderr)
        self._view = view or terminal_view()
        self._told: set[str] = set()
        self._unreadable_since_s = math.inf

    def look(self, now_s: float | None = None, last: bool = False) -> None:
        """Shows the run as it is at `now_s`, by default as it was at its newest record.

        Raises UserError at the `last` look where some of the run cannot be read: what can is shown before.
        """
        try:
            self._summary.facts = replace(self._summary.facts, lives=RunFacts.of(self.run).lives)
        except (UserError, OSError) as error:
            self._warn_once(str(error))
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self.run.path)  # some file systems say nothing of themselves: 0 of 0
            if disk.total and not disk.free:  # whoever has something to say of it says it to a file there
                self._warn_once(f"the disk of {self.run.path} is full: no checkpoint and no record can be written")
        try:
            for record in self._reader.poll(last):
                self._summary.add(record)
        finally:
            self._view.show(self._summary, self._summary.newest_s if now_s is None else now_s)

    def status(self) -> str:
        """See `RunFolder.status`; "live" while it cannot be read, but for a minute: then that is raised."""
        try:
            status, self._unreadable_since_s = self.run.status(), math.inf
        except (UserError, OSError) as error:
            self._warn_once(str(error))
            self._unreadable_since_s = min(self._unreadable_since_s, time.monotonic())
            if time.monotonic() - self._unreadable_since_s > UNREADABLE_S:
                raise
            return "live"
        return status

    def _warn_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            warn_on_stderr(line)

    def close(self) -> None:
        """A last look, which stays on the screen."""
        try:
            self.look(last=True)
        finally:
            self._view.close(self._summary)


def watch(path: str | Path, view: View | None = None, poll_s: float = 1.0) -> str:
    """Shows a run until it is over (at once, when it is) or Ctrl-C; returns its status, of one that has ended
    how it has: "finished", "stopped" or "failed".

    Raises UserError when `path` is no run folder, a broken or a committed one.
    """
    run = RunFolder.open(path)
    run.refuse_committed()
    watcher, status = Watcher(run, view), "live"
    try:
        while (status := watcher.status()) == "live":
            watcher.look(time.time())
            time.sleep(poll_s)
    except KeyboardInterrupt:
        pass  # the run goes on, its watcher leaves
    finally:
        watcher.close()
    return str(run.life().get("ended", {}).get("outcome", status))


@contextlib.contextmanager
def watched(run: RunFolder, view: View | None = None, poll_s: float = 1.0) -> Iterator[None]:
    """Shows a run from a thread while the body runs: the terminal of a launch. Trouble with it ends only the view."""
    over = threading.Event()
    thread = threading.Thread(target=_watch_until, args=(over, run, view, poll_s), name="watcher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=_LAST_LOOK_S)


def _watch_until(over: threading.Event, run: RunFolder, view: View | None, poll_s: float) -> None:
    try:
        watcher = Watcher(run, view or terminal_view(since_s=run.life().get("started_s", 0.0)))
        try:
            while not over.wait(poll_s):
                watcher.look(time.time())
        finally:
            watcher.close()
    except (UserError, OSError, ValueError) as error:  # ValueError: stdout is closed, or lacks a character
        warn_on_stderr(f"the view of the run ended: {error}")
