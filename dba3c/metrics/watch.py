"""`dba3c watch RUN`: the terminal view of a live or finished run, on its machine or over a shared file system."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dba3c.errors import UserError, warn_on_stderr
from dba3c.metrics.reader import RunReader
from dba3c.metrics.run_facts import RunFacts
from dba3c.metrics.summary import RunSummary
from dba3c.metrics.views import View, terminal_view
from dba3c.runs.run_folder import RunFolder

_LAST_LOOK_S = 10.0


class Watcher:
    """Shows a run: each `look` reads what is new and redraws. What cannot be read goes to `warn`, once for each file.

    Raises UserError when the folder is a broken one.
    """

    def __init__(self, run: RunFolder, view: View | None = None, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.run = run
        self._summary = RunSummary(RunFacts.of(run))
        self._reader = RunReader(run)
        self._view = view or terminal_view()
        self._warn = warn
        self._warned: set[str] = set()

    def look(self, now_s: float | None = None) -> None:
        """Shows the run as it is at `now_s`, by default as it was at its newest record."""
        for record in self._reader.poll():
            self._summary.add(record)
        for about, complaint in self._reader.complaints().items():
            if about not in self._warned:
                self._warned.add(about)
                self._warn(complaint)
        self._summary.facts = replace(self._summary.facts, lives=RunFacts.of(self.run).lives)
        self._view.show(self._summary, self._summary.newest_s if now_s is None else now_s)

    def close(self) -> None:
        """A last look, which stays on the screen."""
        self.look()
        self._view.close(self._summary)


def watch(path: str | Path, view: View | None = None, poll_s: float = 1.0) -> str:
    """Shows a run until it is over (at once, when it is) or Ctrl-C; returns its status.

    Raises UserError when `path` is no run folder, or a broken one.
    """
    run = RunFolder.open(path)
    watcher = Watcher(run, view)
    status = run.status()
    try:
        while status == "live":
            watcher.look(time.time())
            time.sleep(poll_s)
            status = run.status()
    except KeyboardInterrupt:
        pass  # the run goes on, its watcher leaves
    finally:
        watcher.close()
    return status


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
        while not over.wait(poll_s):
            watcher.look(time.time())
        watcher.close()
    except (UserError, OSError) as error:
        warn_on_stderr(f"the view of the run ended: {error}")
