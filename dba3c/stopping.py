"""When the coordinator ends a run: it was asked to, or it has seen the frames it was to see."""

from __future__ import annotations

import time

from dba3c.config import TrainConfig
from dba3c.run_folder import RunFolder

LOOK_S = 1.0


class StopRule:
    """Called with (step, data_points) at step boundaries; looks into the run folder at most once a second."""

    def __init__(self, folder: RunFolder, config: TrainConfig) -> None:
        self.folder = folder
        self.frames_per_point = config.environment.frames_per_step
        self.total_frames = config.run.total_frames
        self.max_hours = config.run.max_hours
        self._started_s = time.monotonic()
        self._next_look_s = 0.0

    def __call__(self, step: int, data_points: int) -> str | None:
        """Why the run should end now, None to go on."""
        del step
        reason = self._limit_reached(data_points)
        if reason is not None:
            self.folder.request_stop(reason)  # its helpers (monitor, evaluator, recorder) look for it there
        return reason

    def _limit_reached(self, data_points: int) -> str | None:
        frames = data_points * self.frames_per_point
        if self.total_frames is not None and frames >= self.total_frames:
            return f"{frames:,} frames trained on"
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + LOOK_S
        if self.max_hours is not None and now_s - self._started_s >= self.max_hours * 3600:
            return f"{self.max_hours} hours of this life are over"
        return self.folder.stop_reason()
