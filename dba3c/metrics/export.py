"""`dba3c export RUN --to NAME`: gives a run's records to a tracker, through the reader and sinks of a live run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.metrics.charts import Event, points_of
from dba3c.metrics.sinks.sink import TrackedRun, make_sinks
from dba3c.runs.run_folder import RunFolder


def export(
    path: str | Path,
    to: str,
    into: str | Path | None = None,
    points_every_s: float = 10.0,
    warn: Callable[[str], None] = warn_on_stderr,
) -> int:
    """Gives the whole run to one tracker and returns the number of points.

    Args:
        to: a tracker's name, as in --track.
        into: where a tracker that writes files puts them; RUN/exports by default. Nothing else of the run changes.
        points_every_s: seconds of the run between two points.
        warn: is told which files had lines that are not records: nothing is skipped silently here.

    Raises:
        UserError: no run, no records, no such tracker, the tracker failed, or INTO cannot be written.
    """
    run = RunFolder.open(path)
    (sink,) = make_sinks([to])
    folder = Path(into).expanduser().resolve() if into is not None else run.path / "exports"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tracked, points = TrackedRun.of(run), 0
    try:
        # Not the live run's identity: its points would stand there twice.
        sink.open(replace(tracked, identity=f"{tracked.identity}-export", folder=folder, resumed=False))
        for happened in points_of(run, points_every_s, warn=warn):
            if isinstance(happened, Event):
                sink.event(happened.message, happened.step, happened.time_s)
            else:
                sink.point(happened.values, happened.step, happened.time_s)
                points += not happened.of_evaluation
        sink.close()
    except UserError:
        raise
    except Exception as error:  # a foreign client raises anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise UserError(f"{to} failed after {points} points: {reason}") from error
    if not points:
        raise UserError(f"{run.path} has no records to export")
    return points
