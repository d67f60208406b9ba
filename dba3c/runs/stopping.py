"""When the coordinator ends a run: it was asked to, or it has seen the frames it was to see.

The one rule of `total_frames`: data points × the frame skip, its mean where it is random.
"""

from __future__ import annotations

import time

from dba3c.config import TrainConfig
from dba3c.runs.run_folder import RunFolder

LOOK_S = 1.0
REPLAYING = ("r2d2", "sac")


class StopRule:
    """Called with (step, data_points) at step boundaries; looks into the run folder at most once a second."""

    def __init__(self, folder: RunFolder, config: TrainConfig) -> None:
        self.folder = folder
        self.frames_per_point = config.environment.frames_per_step
        self.total_frames = config.run.total_frames
        self.max_hours = config.run.max_hours
        self.replay_frames = frames_before_learning(config)
        self._started_s = time.monotonic()
        self._next_look_s = 0.0

    def __call__(self, step: int, data_points: int) -> str | None:
        """Why the run should end now, None to go on."""
        del step
        now_s = time.monotonic()
        looks = now_s >= self._next_look_s
        limit = self._frames_reached(data_points)
        if limit is None and looks and self.max_hours is not None and now_s - self._started_s >= self.max_hours * 3600:
            limit = f"{self.max_hours} hours of this life are over"
        if limit is not None:
            self.folder.stop_here(limit, finished=True)  # monitor, evaluators and recorders look for it there
            return limit
        if not looks:
            return None
        self._next_look_s = now_s + LOOK_S
        return self.folder.stop_reason()

    def _frames_reached(self, data_points: int) -> str | None:
        frames = data_points * self.frames_per_point
        if self.total_frames is None or frames < self.total_frames:
            return None
        late = self.replay_frames > self.total_frames
        filled = f"; {self.replay_frames:,.0f} had filled the replay before the first update" if late else ""
        return f"{frames:,.0f} frames trained on{filled}"


def frames_before_learning(config: TrainConfig) -> float:
    """Frames that are stepped before the first update, in every learner's replay; 0 where nothing is replayed."""
    if config.algorithm.algorithm not in REPLAYING:
        return 0.0
    return config.replay.replay_start * config.exchange.num_workers * config.environment.frames_per_step


def before_the_first_update(config: TrainConfig) -> str:
    """What is said of a run that ended without an update."""
    frames = frames_before_learning(config)
    why = f", while the replay was filling: it begins with {frames:,.0f} frames" if frames else ""
    return f"before the first update{why}"
