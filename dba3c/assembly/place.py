"""Who a process of a run is."""

from __future__ import annotations

from dataclasses import dataclass

from dba3c.config import TrainConfig
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Place:
    """Who this process is."""

    folder: RunFolder
    config: TrainConfig
    rank: int
    incarnation: int

    def metrics(self, role: str) -> MetricsWriter:
        """This process's own metrics file."""
        return MetricsWriter(self.folder, role, self.rank, self.incarnation, self.config.run.metrics_window_s)

    @property
    def secret(self) -> bytes:
        """What proves that a peer belongs to this run."""
        return self.folder.secret().encode()
