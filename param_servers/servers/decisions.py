"""What the coordinator can decide, and how its orders are said to the other shards."""

from typing import NamedTuple

from param_servers.errors import BadMessage
from param_servers.wire.messages import MEMBER, Code, Header, Kind, Row, pack_rows, text_of, unpack_rows


class Commit(NamedTuple):
    """Every shard averages exactly the MEMBER rows of version `step` and sends the result to the RECIPIENT rows."""

    term: int
    step: int
    data_points_before: int
    """Not told to the other shards, which know it."""
    data_points: int
    """In the run, this step included."""
    rows: tuple[Row, ...]
    staleness: tuple[int, ...]
    """Of each member, in commit order; all 0 in synchronous mode."""

    @property
    def members(self) -> list[Row]:
        """The pushes that are averaged, in ascending worker order."""
        return [row for row in self.rows if row.mark & MEMBER]


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


Order = Commit | Give | Expel | Restore | Checkpoint | Stop
"""What every shard obeys, in the order in which it was decided."""
Decision = Commit | Give | Expel | Forsake | Restore | Checkpoint | Stop | Note


def pack_order(order: Order) -> tuple[Header, bytes]:
    """An order as shard 0 says it to the other shards."""
    if isinstance(order, Commit):
        header = Header(Kind.COMMIT, 0, 0, order.term, order.step, data_points=order.data_points)
        return header, pack_rows(order.rows)
    if isinstance(order, Give):
        return Header(Kind.GIVE, 0, 0, order.term, order.step), pack_rows(order.rows)
    if isinstance(order, Expel):
        return Header(Kind.EXPEL, 0, order.incarnation, sequence=order.worker), order.reason.encode()
    if isinstance(order, Checkpoint):
        return Header(Kind.CHECKPOINT, 0, 0, 0, order.step, data_points=order.data_points), b""
    if isinstance(order, Restore):
        return Header(Kind.RESTORE, 0, 0, *order[:2], data_points=order.data_points), b""
    return Header(Kind.STOP, 0, code=Code.FAILED if order.failed else Code.NONE), order.reason.encode()


def unpack_order(header: Header, payload: bytes | memoryview) -> Order:
    """What `pack_order` has packed; of a commit, what only shard 0 needs is left out.

    Raises:
        BadMessage: it is no order.
    """
    term, step, data_points = header.term, header.step, header.data_points
    if header.kind == Kind.COMMIT:
        return Commit(term, step, 0, data_points, tuple(unpack_rows(payload)), ())
    if header.kind == Kind.GIVE:
        return Give(term, step, tuple(unpack_rows(payload)))
    if header.kind == Kind.EXPEL:
        return Expel(header.sequence, header.incarnation, text_of(payload))
    if header.kind == Kind.CHECKPOINT:
        return Checkpoint(step, data_points)
    if header.kind == Kind.RESTORE:
        return Restore(term, step, data_points)
    if header.kind == Kind.STOP:
        return Stop(text_of(payload), header.code == Code.FAILED)
    raise BadMessage(f"an order {header.kind.name} that does not exist")
