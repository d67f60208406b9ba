"""What happens on the links of a process, whatever carries them: a hub's `poll` returns these."""

from typing import NamedTuple

from param_servers.handshake import Hello, Peer
from param_servers.messages import Header


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
    """A stranger was turned away."""

    reason: str


Event = Joined | Left | Message | Rejected
