"""The body of the monitor process, as the launch starts it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from dba3c.monitor.ending import RunIsOver
from dba3c.monitor.monitor import MonitorReport, run_monitor
from dba3c.monitor.stop_rule import StopRule
from dba3c.monitor.views import terminal_view
from dba3c.run_folder import RunFolder


def monitor_process(path: str | Path, show: bool = True) -> MonitorReport:
    """The body of the monitor process: trackers and limits as the run's config.json says, the view on stdout.

    Ctrl-C reaches every process of a terminal: it is the launch's to handle, the monitor stays to the end. SIGTERM
    means that the run is over: one last look, then it ends.
    """
    told_to_end = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    run = RunFolder.open(path)
    config, over = run.config(), RunIsOver(run)
    return run_monitor(
        run,
        sinks=(config.get("run") or {}).get("track") or (),
        stop_rule=StopRule.from_config(config),
        until_finished=lambda: told_to_end.is_set() or over(),
        view=terminal_view() if show else None,
    )
