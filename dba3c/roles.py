"""What the processes of a run are: who one is, and the one table of what each role does."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from dba3c.config import TrainConfig
from dba3c.runs.folder import RunFolder

ROLES = {
    "server": "dba3c.assembly.exchanges:server",  # hold one shard of the parameters
    "worker": "dba3c.workers.worker:worker",  # step environments and compute gradients
    "learner": "dba3c.central.learner:learner",  # choose actors' actions and train on what they did
    "actor": "dba3c.central.actor:actor",  # step environments as a learner says
    "monitor": "dba3c.metrics.monitor:monitor",  # read the metrics of all, feed the trackers
    "evaluator": "dba3c.evaluation.evaluator:evaluator",  # play full games with each new checkpoint
    "recorder": "dba3c.recording.recorder:recorder",  # film a game of every k-th checkpoint
}
"""Where each role's whole life is, by module: a process loads its own only."""


@dataclass(frozen=True)
class RunProcess:
    """One process of a run."""

    folder: RunFolder
    config: TrainConfig
    rank: int
    incarnation: int
    lane: int = 0
    """Of a worker: which of its processes this is."""

    @property
    def secret(self) -> bytes:
        """What proves that a peer belongs to this run."""
        return self.folder.secret().encode()


def play(role: str, process: RunProcess) -> str:
    """Be that role until the run is over.

    Returns:
        The reason the run ended.
    """
    module, function = ROLES[role].split(":")
    return getattr(import_module(module), function)(process)
