"""One gradient on its way to all shards, which get it at the same pace.

A shard can pass on what the slowest of its workers has sent. Where a worker's own link is as busy as the shards' (as
many servers as workers) no link has time to make up for anything: what its queue did not have to send at the beginning
of a step is lost for that step. So the links take turns, a piece each, beginning with another one at each worker: all
shards receive from the first moment on, and none from all workers at once. The first pieces are small, or the last
link would wait for its first byte. And no link is far ahead of the slowest, counted by what the kernel has taken, of
which it holds little unsent (`tcp_sockets.hold_little_unsent`): left alone, links drift apart as a random walk does,
and what one link is behind, its shard still has to pass on to every worker. (8 workers, 8 servers, 6.7 MB at 100
Mbit/s: 1.11 to 1.13 times the bound, without a pace 1.40 and 1.51.)
"""

from param_servers.wire.frames import Frame
from param_servers.wire.handshake import Peer
from param_servers.wire.hub import Hub
from param_servers.wire.messages import HEADER_BYTES

LEADS, LEAST_LEAD_BYTES, FIRST_PIECE_BYTES = 16, 16 << 10, 4 << 10
"""A link may be a 16th of the longest slice ahead, or 16 KB; pieces grow from 4 KB to a third of that."""


class EvenPush:
    """The frames of one push, by server. They share a pace until `finish`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._frames: dict[Peer, Frame] = {}
        self._lead = LEAST_LEAD_BYTES

    def begin(self, server: Peer, frame: Frame) -> bool:
        """Queue a frame of which nothing is `available` yet; call `advance` when all have been.

        False: the server is not connected.
        """
        if not self._hub.stream(server, frame):
            return False
        self._frames[server] = frame
        self._lead = max(self._lead, len(frame.payload) // LEADS)
        return True

    def lost(self, server: Peer) -> None:
        """This link is gone: the others do not wait for it."""
        self._frames.pop(server, None)

    def advance(self) -> None:
        """Let every link send on; to be called after each poll.

        It ends when all is sent or the slowest link takes no more for now: then the next poll waits for that link.
        """
        while unsent := [frame for frame in self._frames.values() if frame.sent < HEADER_BYTES + len(frame.payload)]:
            slowest = min(max(0, frame.sent - HEADER_BYTES) for frame in unsent)
            if not self._allow(slowest + self._lead):
                return

    def finish(self) -> None:
        """The push has its answer: what has begun is to end, or its link would stay in the middle of a frame."""
        for server, frame in self._frames.items():
            # with the next poll: what has not begun can be cancelled
            self._hub.allow(server, frame, len(frame.payload))
        self._frames.clear()
        self._lead = LEAST_LEAD_BYTES

    def _allow(self, size: int) -> bool:
        """Let every link send so many bytes in all, a growing piece of each in turn; False when none may send more."""
        held = {
            server: frame for server, frame in self._frames.items() if frame.available < min(size, len(frame.payload))
        }
        if not held:
            return False
        allowed = min(frame.available for frame in held.values())
        while allowed < size:
            allowed += min(max(allowed, FIRST_PIECE_BYTES), self._lead // 3)
            for server, frame in held.items():
                self._hub.allow(server, frame, min(allowed, size, len(frame.payload)))
            self._hub.flush()
        return True
