"""Two TCP hubs on loopback, both ends in one thread."""

import socket
import time
from collections.abc import Callable

from param_servers.errors import BadMessage
from param_servers.wire.frames import Event
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header

SECRET = b"s" * 32
WORKER, SERVER = Peer(Role.WORKER, 3), Peer(Role.SERVER, 0)
MOST = 1 << 22


def receive_into(peer: Peer, header: Header) -> memoryview:
    if header.length > MOST:
        raise BadMessage(f"{header.length} bytes are too many")
    return memoryview(bytearray(header.length))


class Pair:
    """A listening hub, a dialling hub, and what each has heard."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.server = Hub(SECRET, receive_into)
        self.worker = Hub(SECRET, receive_into)
        self.address = self.server.listen(host)
        self.heard: dict[Hub, list[Event]] = {self.server: [], self.worker: []}

    def until(self, done: Callable[[], bool]) -> None:
        """Poll both until something is so; at most a minute."""
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline, f"nothing came of it: {self.heard}"
            for hub in (self.server, self.worker):
                self.heard[hub] += hub.poll(0.01)

    def connect(self, **hello: int) -> None:
        self.worker.dial(self.address, Hello(Role.WORKER, 3, hello.get("incarnation", 0), 0, "f" * 16))
        self.until(lambda: self.server.connected(WORKER) and self.worker.connected(SERVER))

    def last(self, hub: Hub, kind: type) -> Event | None:
        found = [event for event in self.heard[hub] if isinstance(event, kind)]
        return found[-1] if found else None

    def wait_for(self, hub: Hub, kind: type) -> Event:
        self.until(lambda: self.last(hub, kind) is not None)
        event = self.last(hub, kind)
        assert event is not None
        return event

    def raw(self) -> socket.socket:
        """A stranger's plain connection."""
        return socket.create_connection(self.address, timeout=10)
