"""`dba3c watch RUN`: the terminal view of a live or finished run, on its machine or over a shared file system."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from dba3c.monitor.reader import RunReader
from dba3c.monitor.run_facts import RunFacts
from dba3c.monitor.summary import RunSummary
from dba3c.monitor.views import View, terminal_view
from dba3c.run_folder import RunFolder


def watch(path: str | Path, view: View | None = None, poll_s: float = 1.0) -> str:
    """Shows a run until it is over (at once, when it is) or Ctrl-C; returns its status.

    Raises UserError when `path` is no run folder, or a broken one.
    """
    run = RunFolder.open(path)
    summary, reader = RunSummary(RunFacts.of(run)), RunReader(run)
    view = view or terminal_view()
    status = "live"
    try:
        while True:
            status = run.status()
            for record in reader.poll():
                summary.add(record)
            summary.facts = replace(summary.facts, lives=RunFacts.of(run).lives)
            if status != "live":
                break
            view.show(summary, time.time())
            time.sleep(poll_s)
    except KeyboardInterrupt:
        pass  # the run goes on, its watcher leaves
    finally:
        view.show(summary, summary.newest_s)
        view.close(summary)
    return status
