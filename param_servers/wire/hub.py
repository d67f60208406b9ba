"""All links of one process behind one `poll`: the same loop in servers and in workers, without threads.

    hub.send(peer, header, payload)         queue; never blocks
    for event in hub.poll(timeout_s): ...   Joined, Left(reason), Message or Rejected

Nothing above this knows what carries the frames: sockets (`tcp_hub`), or the simulation of the tests.
"""

from typing import Protocol

from param_servers.wire.events import Event
from param_servers.wire.frames import Frame
from param_servers.wire.handshake import Hello, Peer
from param_servers.wire.messages import Header, Kind


class Hub(Protocol):
    """Links by peer."""

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links."""
        ...

    def listen(self, host: str, port: int = 0, window_bytes: int | None = None) -> tuple[str, int]:
        """Accept peers; returns the address bound.

        Args:
            window_bytes: most that the kernel receives ahead on a link from another host; None: the kernel's choice, as
                always on loopback, which has no queue that could overflow.

        Raises:
            OSError: the address is taken.
        """
        ...

    def dial(self, address: tuple[str, int], hello: Hello) -> None:
        """Begin to connect; Joined or Left(server `hello.shard`) follows."""
        ...

    def connected(self, peer: Peer) -> bool:
        """Whether this peer has Joined and is not Left."""
        ...

    def send(self, peer: Peer, header: Header, payload: memoryview | None = None) -> Frame | None:
        """Queue a frame; None when the peer is not connected. The payload must not change until it is sent."""
        ...

    def stream(self, peer: Peer, frame: Frame) -> bool:
        """Queue a frame whose payload is still growing; call `grown` when `frame.available` has increased.

        False: the peer is not connected, or the transport sends payloads only whole.
        """
        ...

    def grown(self, peer: Peer) -> None:
        """More of a streamed frame may be sent."""
        ...

    def receiving(self, peer: Peer) -> tuple[Header, int] | None:
        """Header and bytes so far of the payload that is arriving from this peer; None also where that is unknown."""
        ...

    def cancel(self, peer: Peer, kind: Kind) -> None:
        """Drop queued frames of a kind that have not begun."""
        ...

    def close(self, peer: Peer) -> None:
        """Send what is queued, then close; no Left follows."""
        ...

    def poll(self, timeout_s: float, until: Peer | None = None) -> list[Event]:
        """Move bytes for at most `timeout_s` (0: only what can move now) and return what happened.

        Args:
            until: who is waited for: what the others say may lie in the kernel until this peer is heard or the time
                is over. A transport may ignore it.
        """
        ...

    def flush(self) -> None:
        """Send what can be sent now of what was queued since the last poll.

        A link that took no more the last time is tried again by `poll`, when it does.
        """
        ...

    def drain(self, timeout_s: float) -> None:
        """Close every link politely within `timeout_s`, then `shut`."""
        ...

    def shut(self) -> None:
        """Close everything at once. Safe to call twice."""
        ...
