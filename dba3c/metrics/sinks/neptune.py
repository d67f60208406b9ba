"""Neptune: offline unless NEPTUNE_MODE says otherwise (the hosted service closed in 2026; NEPTUNE_* and a compatible
backend are honoured). Offline data lies in RUN/.neptune; `neptune sync --path RUN` sends it later."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dba3c.metrics.sinks.sink import TrackedRun, client


class NeptuneSink:
    """Series under the chart names (score/mean, loss/total, ...), the config under parameters/, events as text."""

    name = "neptune"

    def __init__(self) -> None:
        self._run: Any = None

    def open(self, run: TrackedRun) -> None:
        os.environ.setdefault("NEPTUNE_DATA_DIRECTORY", str(run.folder / ".neptune"))
        neptune = client("neptune", self.name)
        logging.getLogger("neptune").setLevel(logging.WARNING)
        self._run = neptune.init_run(
            mode=os.environ.get("NEPTUNE_MODE", "offline"),
            name=run.name,
            custom_run_id=os.environ.get("NEPTUNE_CUSTOM_RUN_ID", run.identity),
            tags=list(run.tags),
            source_files=[],
            capture_stdout=False,
            capture_stderr=False,
            capture_hardware_metrics=False,
            capture_traceback=False,
            git_ref=False,
        )
        for parameter, value in run.parameters().items():
            self._run[f"parameters/{parameter}"] = value

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        for chart, value in values.items():
            self._run[chart].append(value, step=step, timestamp=time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._run["events"].append(message, step=step, timestamp=time_s)

    def film(self, path: Path, step: int, time_s: float) -> None:
        self._run[f"films/{path.stem}"].upload(str(path))

    def close(self) -> None:
        self._run.stop()
