"""Weights & Biases: offline unless WANDB_MODE says otherwise (compute nodes have no way out); `wandb sync` sends it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dba3c.metrics.sinks.sink import TrackedRun, client


class WandbSink:
    """One W&B run for all lives of a run, in the project WANDB_PROJECT (default "dba3c"); files in RUN/wandb."""

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None
        self._step = 0

    def open(self, run: TrackedRun) -> None:
        wandb = self._client = client("wandb", self.name)
        self._run = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            project=os.environ.get("WANDB_PROJECT", "dba3c"),
            id=os.environ.get("WANDB_RUN_ID", run.identity),
            resume="allow",
            name=run.name,
            config={"config": run.config, "facts": run.facts},
            tags=[tag[:64] for tag in run.tags],
            # Only what is handed over is recorded: no console, no code, no machine statistics.
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False
            ),
        )

    def point(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        self._log(values, step, time_s)

    def event(self, message: str, step: int, time_s: float) -> None:
        self._log({"event": message}, step, time_s)

    def film(self, path: Path, step: int, time_s: float) -> None:
        self._log({"film": self._client.Video(str(path), format="gif")}, step, time_s)

    def _log(self, values: Mapping[str, Any], step: int, time_s: float) -> None:
        self._step = max(self._step, step)  # W&B drops what comes for an earlier step, as evaluations do
        self._run.log({**values, "_timestamp": time_s}, step=self._step)

    def close(self) -> None:
        self._run.finish()
        self._client.teardown()  # ends the client's own service process, which would outlive the run
