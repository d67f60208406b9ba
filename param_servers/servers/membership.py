"""Which workers are connected, in which incarnation, and which versions are on their way to each. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from param_servers.wire.messages import MEMBER, RECIPIENT, Row

GIVEN_AHEAD = 2
"""Versions that may be on their way to a worker that has not asked."""
Key = tuple[int, int]
"""(worker, incarnation)"""


@dataclass
class Member:
    """A connected worker."""

    incarnation: int
    given: list[int] = field(default_factory=list)
    """Versions sent that the worker has not been seen to use yet."""
    waiting: bool = False
    """It asked for parameters while there were none to give."""

    def uses(self, step: int) -> None:
        """It has version `step`, hence no use for older ones."""
        self.given = [version for version in self.given if version > step]


class Membership:
    """The workers of one run."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self._newest: dict[int, int] = {}
        """Incarnation by worker, of all that ever joined."""
        self._met: set[Key] = set()

    def __len__(self) -> int:
        return len(self.members)

    def newest_incarnation(self, worker: int, default: int) -> int:
        """The newest incarnation of a worker that ever joined."""
        return self._newest.get(worker, default)

    def met(self, worker: int, incarnation: int) -> bool:
        """Whether this incarnation has joined before."""
        return (worker, incarnation) in self._met

    def join(self, worker: int, incarnation: int) -> None:
        """A worker is connected; nothing is on its way to it."""
        self.members[worker] = Member(incarnation)
        self._newest[worker] = incarnation
        self._met.add((worker, incarnation))

    def leave(self, worker: int) -> int:
        """A connected worker is no longer one; its incarnation."""
        return self.members.pop(worker).incarnation

    def find(self, worker: int, incarnation: int) -> Member | None:
        """A worker, if this incarnation of it is connected."""
        member = self.members.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def superseded(self, worker: int, incarnation: int) -> bool:
        """Whether a newer incarnation of this worker has joined."""
        return incarnation < self.newest_incarnation(worker, 0)

    def begin_term(self) -> None:
        """All versions are void; every worker must hear of the new term even if it does not ask."""
        for member in self.members.values():
            member.given, member.waiting = [], True

    def waiting(self) -> list[Row]:
        """Who waits for parameters."""
        return [Row(worker, member.incarnation, 0) for worker, member in sorted(self.members.items()) if member.waiting]

    def give(self, rows: list[Row], step: int) -> None:
        """Version `step` is on its way to these."""
        for row in rows:
            member = self.find(row.worker, row.incarnation)
            if member is not None:
                member.given.append(step)
                member.waiting = False

    def table(self, sequences: Mapping[Key, int], step: int, only_members: bool) -> list[Row]:
        """The rows of a commit that makes version `step`: its members, and who is sent the result.

        Args:
            sequences: of each member's push.
            only_members: send to members only (asynchronous mode).
        """
        rows = {key: Row(*key, sequence, MEMBER) for key, sequence in sequences.items()}
        for worker, member in self.members.items():
            key = (worker, member.incarnation)
            if len(member.given) < GIVEN_AHEAD and (key in sequences or not only_members):
                member.given.append(step)
                row = rows.get(key, Row(*key, 0))
                rows[key] = row._replace(mark=row.mark | RECIPIENT)
        return sorted(rows.values())
