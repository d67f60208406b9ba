"""What a supervisor needs to know of one process of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

USER_ERROR_EXIT = 2
"""Bad input: starting the process again would not help."""
RUN_ENDED_BROKEN_EXIT = 3
"""The run has ended, not as asked (a server did not come back, too few workers are left): it would end so again."""
RUN_TAKEN_OVER_EXIT = 4
"""Another launch has taken the run folder (dba3c.runs.run_lock)."""
FINAL_EXITS = (USER_ERROR_EXIT, RUN_ENDED_BROKEN_EXIT, RUN_TAKEN_OVER_EXIT)

RESTART_WINDOW_S = 3600.0
DRAIN_TIMEOUT_S = 30.0
"""Of a process that has nothing to do after the run's end; evaluators have their budget on top."""

TRAINING_ROLES = ("server", "worker", "learner", "actor")


@dataclass(frozen=True, kw_only=True)
class RoleProcess:
    """A process to keep running, and what its loss means."""

    role: str
    rank: int
    command: Callable[[int], Sequence[str]]
    """Incarnation → command line."""
    max_restarts: int = 0
    """How often within `RESTART_WINDOW_S` it is started again after it was lost; one of `FINAL_EXITS` is final."""
    essential: bool = True
    """Lost for good, it ends the run; otherwise the run goes on without it."""
    decides: bool = True
    """Its exit with 0 means that the run has ended."""
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    """How long it may go on after the run has ended."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""

    @property
    def takes_part(self) -> bool:
        """Whether it trains: bad input to it is bad input to the run, which a monitor's or recorder's need not be."""
        return self.role in TRAINING_ROLES

    @property
    def keeps_the_run(self) -> bool:
        """Whether all that was learned is lost with it: the only learner, the chief of workers without servers."""
        return self.essential or (self.decides and self.rank == 0)

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"
