"""A process that a supervisor keeps running, and what its loss means to the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dba3c.runs.ending import TRAINING_ROLES

RESTART_WINDOW_S = 3600.0
DRAIN_TIMEOUT_S = 30.0
"""Of a process that has nothing to do after the run's end; who only reads has the evaluation budget on top."""


@dataclass(frozen=True, kw_only=True)
class RoleProcess:
    """A process to keep running, and what its loss means."""

    role: str
    rank: int
    words: Callable[[int], Sequence[str]]
    """Incarnation → what its `main` is called with."""
    main: str = "launch.role:main"
    max_restarts: int = 0
    """How often within `RESTART_WINDOW_S` it is started again after it was lost; one of `FINAL_EXITS` is final."""
    essential: bool = True
    """Lost for good, it ends the run; otherwise the run goes on without it."""
    decides: bool = True
    """Its exit with 0 means that the run has ended."""
    saves_alone: bool = False
    """In a checkpoint it keeps what is left of a run that has failed: an all-reduce has no servers for that."""
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    """How long it may go on after the run has ended."""
    missed: str = ""
    """What nobody does any more when the run goes on without it."""

    @property
    def takes_part(self) -> bool:
        """Whether it trains: bad input to it is bad input to the run, which a monitor's or recorder's need not be."""
        return self.role in TRAINING_ROLES

    @property
    def keeps_the_run(self) -> bool:
        """Whether all that was learned is lost with it: the only learner, the chief of workers without servers."""
        return self.essential or (self.decides and self.rank == 0)

    @property
    def saves_last(self) -> bool:
        """Whether it writes the last checkpoint, also after others of its kind have ended well."""
        return self.saves_alone and self.rank == 0

    @property
    def only_reads(self) -> bool:
        """What others write: when they are gone, it has nothing to wait for."""
        return self.role == "monitor"

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"
