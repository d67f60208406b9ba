"""A hub whose poll another thread can end early."""

import contextlib
import socket
from typing import Any

from param_servers.wire.events import Event
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.tcp_hub import TcpHub


class WakeableHub(TcpHub):
    """A `TcpHub` of one thread, plus `wake` for the others."""

    chief = Peer(Role.SERVER, 0)
    """The other end of the only link that ranks of a majority all-reduce have."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._loop.wake_for(self._ear)

    def wake(self) -> None:
        """Let a running or the next `poll` return at once. May be called from any thread."""
        with contextlib.suppress(OSError):  # rung often enough already, or closed
            self._bell.send(b"!")

    def poll(self, timeout_s: float, until: Peer | None = None) -> list[Event]:
        """See `Hub.poll`; every link is waited for, or `wake` would not be noticed."""
        events = super().poll(timeout_s)
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        return events

    def shut(self) -> None:
        """See `Hub.shut`."""
        super().shut()
        self._bell.close()
        self._ear.close()
