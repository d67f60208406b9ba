"""One gradient on its way to all shards, which get it at the same pace.

A shard can pass on what the slowest of its workers has sent. Where a worker's own link is as busy as the shards' (as
many servers as workers) nothing else sees to it that each of its links has the same share: at some shards a worker was
late by a third of a slice, as early at others, and every step waited for it. So no link is given more than `LEAD_BYTES`
beyond what the slowest has taken; a worker that is even can then be no faster than the others either.
"""

from param_servers.frames import Frame
from param_servers.handshake import Peer
from param_servers.hub import Hub
from param_servers.messages import HEADER_BYTES

LEAD_BYTES = 128 << 10


class EvenPush:
    """The frames of one push, by server. They share a pace until `finish`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._frames: dict[Peer, Frame] = {}

    def begin(self, server: Peer, frame: Frame) -> bool:
        """Queue a frame of which nothing is `available` yet; call `advance` when all have been.

        False: the server is not connected, or the transport sends payloads only whole.
        """
        if not self._hub.stream(server, frame):
            return False
        self._frames[server] = frame
        return True

    def lost(self, server: Peer) -> None:
        """This link is gone: the others do not wait for it."""
        self._frames.pop(server, None)

    def advance(self) -> None:
        """Let every link send on; to be called after each poll.

        It ends when all is sent or the slowest link takes no more for now: then the next poll waits for that link.
        """
        while self._frames:
            slowest = min(max(0, frame.sent - HEADER_BYTES) for frame in self._frames.values())
            if not self._allow(slowest + LEAD_BYTES):
                return
            self._hub.flush()

    def finish(self) -> None:
        """The push has its answer: what has begun is to end, or its link would stay in the middle of a frame."""
        self._allow(max((len(frame.payload) for frame in self._frames.values()), default=0))
        self._frames.clear()

    def _allow(self, size: int) -> bool:
        grown = False
        for server, frame in self._frames.items():
            available = min(size, len(frame.payload))
            if available > frame.available:
                frame.available = available
                self._hub.grown(server)
                grown = True
        return grown
