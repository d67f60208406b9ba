"""What the coordinator can decide, and the numbers it decides by."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from param_servers.timeouts import Timeouts
from param_servers.wire.messages import Row


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers of a run, as the coordinator needs them."""

    num_shards: int
    num_gradients: int
    """g, as configured."""
    asynchronous: bool = False
    max_staleness: int | None = None
    timeouts: Timeouts = field(default_factory=Timeouts.of)
    when_lost: Literal["shrink", "stop"] = "shrink"
    min_workers: int = 1
    checkpoints: bool = False
    """Whether there is somewhere to write them."""
    checkpoint_every: int = 0
    """Steps; 0: only at the end."""


class Commit(NamedTuple):
    """Every shard averages exactly the MEMBER rows of version `step` and sends the result to the RECIPIENT rows."""

    term: int
    step: int
    data_points_before: int
    data_points: int
    """In the run, this step included."""
    rows: tuple[Row, ...]
    staleness: tuple[int, ...]
    """Of each member, in commit order; all 0 in synchronous mode."""


class Give(NamedTuple):
    """Every shard sends version `step` to these rows; `mark` (a Code) answers push `sequence` where that is not 0."""

    term: int
    step: int
    rows: tuple[Row, ...]


class Expel(NamedTuple):
    """Every shard closes this worker's link."""

    worker: int
    incarnation: int
    reason: str


class Forsake(NamedTuple):
    """Shard 0 closes its link to a server that does not answer."""

    shard: int
    reason: str


class Restore(NamedTuple):
    """Every shard loads version `step` (0 without a checkpoint: the initial parameters) and begins `term`."""

    term: int
    step: int
    data_points: int


class Checkpoint(NamedTuple):
    """Every shard writes its slice of version `step`."""

    step: int
    data_points: int


class Stop(NamedTuple):
    """The run ends now; everybody is told."""

    reason: str
    failed: bool


class Note(NamedTuple):
    """Something worth one line in the log."""

    event: str
    message: str
    worker: int | None = None


Decision = Commit | Give | Expel | Forsake | Restore | Checkpoint | Stop | Note
