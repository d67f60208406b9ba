"""What happens on the links of a process, whatever carries them: a hub's `poll` returns these."""

import math
from typing import NamedTuple

from param_servers.wire.handshake import Hello, Peer
from param_servers.wire.messages import Header


class Joined(NamedTuple):
    """A peer proved itself. A second one of the same role and rank replaces the first, which is Left before."""

    peer: Peer
    hello: Hello


class Left(NamedTuple):
    """A link is gone, or could not be made."""

    peer: Peer
    reason: str
    refused: bool = False
    """The other side turned this process away: dialling again is useless."""


class Message(NamedTuple):
    """A complete frame; `payload` lies where `receive_into` put it.

    The peer's next frame may have begun to arrive before this event is seen: `receive_into` was called for it already.
    """

    peer: Peer
    header: Header
    payload: memoryview


class Rejected(NamedTuple):
    """Strangers were turned away, or peers."""

    reason: str
    """Of the last one."""
    number: int = 1
    """So many since this was last told."""


class Rejections:
    """Those that are turned away: the first is told at once, then as one `Rejected` in `EVERY_S`, however many come."""

    EVERY_S = 60.0

    def __init__(self) -> None:
        self._reason, self._count, self._next_s = "", 0, -math.inf

    def add(self, reason: str) -> None:
        """One more."""
        self._reason, self._count = reason, self._count + 1

    def due(self, now_s: float) -> list[Rejected]:
        """What is to be told now."""
        if not self._count or now_s < self._next_s:
            return []
        reason = self._reason if self._count == 1 else f"{self._reason} (the last of {self._count} turned away)"
        told, self._count, self._next_s = Rejected(reason, self._count), 0, now_s + self.EVERY_S
        return [told]


Event = Joined | Left | Message | Rejected
