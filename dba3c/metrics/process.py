"""The body of the monitor process, as the launch starts it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from dba3c.errors import warn_on_stderr
from dba3c.metrics.monitor import MonitorReport, run_monitor
from dba3c.metrics.stop_rule import StopRule
from dba3c.metrics.views import terminal_view
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.run_folder import RunFolder


def monitor_process(path: str | Path, show: bool = True, incarnation: int = 0) -> MonitorReport:
    """Feeds the trackers and applies the limits that the run's config.json names, until the run is over.

    Ctrl-C reaches every process of a terminal: it is the launch's to handle, the monitor stays to the end. SIGTERM
    means that the run is over: one last look, then it ends. What does not work is said on stderr and in the monitor's
    own metrics file, where every view of the run finds it.

    Args:
        show: print the run's progress on stdout.
        incarnation: how many monitors this life of the run has had before.
    """
    told_to_end = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    run = RunFolder.open(path)
    config = run.config()
    metrics = MetricsWriter(run, "monitor", 0, incarnation)

    def warn(message: str) -> None:
        warn_on_stderr(message)
        metrics.record_event("warning", message)

    try:
        return run_monitor(
            run,
            sinks=(config.get("run") or {}).get("track") or (),
            stop_rule=StopRule.from_config(config),
            until_finished=told_to_end.is_set,
            view=terminal_view() if show else None,
            warn=warn,
            on_stop=lambda reason: metrics.record_event("stopping", reason),
            again=incarnation > 0,
        )
    finally:
        metrics.close()
