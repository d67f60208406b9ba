"""A worker's or an actor's observation statistics, kept beside the checkpoints."""

import json
from pathlib import Path

from dba3c.environments.normalization import (
    FOLDER,
    NormalizedObservations,
    RunningStatistics,
    read_snapshots,
    statistics_of,
)
from dba3c.environments.protocol import VectorEnvironment
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.roles import RunProcess
from dba3c.runs.files import checkpoint_steps, write_atomically
from param_servers.checkpoint.files import find_newest


class StatisticsKeeper:
    """Keeps one process's statistics beside the checkpoints; does nothing where observations are not normalised.

    Args:
        process: whose.
        role: "worker" or "actor".
        groups: its vector environments, which from now on share one set of statistics: what the newest checkpoint's
            was, in a run that is resumed.
    """

    def __init__(self, process: RunProcess, role: str, groups: list[VectorEnvironment]) -> None:
        normalized = [group for group in groups if isinstance(group, NormalizedObservations)]
        self._statistics = normalized[0].statistics if normalized else None
        self._run, self._life = process.folder.path, process.folder.launch_number()
        self._name = f"{role}-{process.rank}" + (f".{process.lane}" if process.lane else "")
        self._every = process.config.exchange.checkpoint_every_steps
        self._resumed_step: int | None = None
        self._saved_step: int | None = None
        self._warned = False
        self._step = 0
        for group in normalized:
            group.statistics = normalized[0].statistics
        newest = find_newest(self._run / "checkpoints") if normalized else None
        if newest is not None:
            self._step = self._saved_step = self._resumed_step = int(newest.name.removeprefix("step-"))
            stored = statistics_of(self._run, self._step, self._name, self._life)
            if stored is not None:
                normalized[0].statistics.merge(stored)

    def at(self, step: int) -> None:
        """The process has parameters of `step`: a snapshot is due when a checkpoint's step was passed."""
        self._step = step
        due = step - step % self._every if self._every else 0
        if self._saved_step is None:
            self._save(step)
        elif due > self._saved_step:
            self._save(due)

    def close(self) -> None:
        """The last snapshot, for the checkpoint that ends the run, also a failed one; none for that it began with."""
        if self._step != self._resumed_step:
            self._save(self._step)

    def _save(self, step: int) -> None:
        self._saved_step = step  # also when the disk refuses: the next one is tried when it is due
        if self._statistics is None:
            return
        path = self._run / FOLDER / f"{self._name}.json"
        try:
            with writing(path):
                self._add_snapshot(path, step, self._statistics)
        except UserError as error:
            if not self._warned:
                warn_on_stderr(f"{error}; training goes on, evaluations normalise by an earlier snapshot")
            self._warned = True

    def _add_snapshot(self, path: Path, step: int, statistics: RunningStatistics) -> None:
        path.parent.mkdir(exist_ok=True)
        oldest = min(checkpoint_steps(self._run / "checkpoints"), default=0)
        snapshots = {s: stored for s, stored in (read_snapshots(path) or {}).items() if s <= step}
        needed = max((s for s in snapshots if s <= oldest), default=0)  # the oldest checkpoint's
        kept = {str(s): stored for s, stored in snapshots.items() if s >= needed}
        write_atomically(path, json.dumps(kept | {str(step): statistics.to_dict() | {"life": self._life}}) + "\n")
