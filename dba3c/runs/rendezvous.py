"""How the processes of a run find each other: through small files in the run folder, rewritten at each start."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from dba3c.runs.folder import RunFolder
from param_servers.errors import ConfigError, RunBroken, RunStopped
from param_servers.wire.tcp_sockets import LOOPBACK


def network_space() -> str:
    """Equal in the processes that share a loopback: this kernel's boot, and the network namespace in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


class Rendezvous:
    """Addresses of the processes that others connect to, published by themselves."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def publisher(self, kind: str, rank: int, incarnation: int) -> Callable[[str, int], None]:
        """What a process calls with the host and port that it listens on; kind: "server", "rank", "learner"."""

        def publish(host: str, port: int) -> None:
            address: dict[str, str | int] = {"host": host, "port": port, "incarnation": incarnation}
            if host.startswith(LOOPBACK):
                address |= {"only_on": socket.gethostname(), "only_in": network_space()}
            self.folder.publish(f"{kind}-{rank}", address)

        return publish

    def address_of(self, kind: str) -> Callable[[int], tuple[str, int] | None]:
        """Rank → where the process of this kind listens now; None while it has not said so.

        Raises (when called):
            ConfigError: it listens on the loopback of another host, where this one would dial itself.
        """

        here = network_space()

        def resolve(rank: int) -> tuple[str, int] | None:
            address = self.folder.published(f"{kind}-{rank}")
            if address is None:
                return None
            if address.get("only_in", here) != here:
                raise ConfigError(
                    f"{kind} {rank} listens on {address['host']}, which is loopback on {address.get('only_on')}: "
                    f"{socket.gethostname()} cannot reach it there; say which interface others see (--interface)"
                )
            return str(address["host"]), int(address["port"])

        return resolve

    def address_until_the_end(self, kind: str) -> Callable[[int], tuple[str, int] | None]:
        """As `address_of`, for those who join or look for a lost peer: nobody comes back once the run has ended.

        Raises (when called):
            RunStopped: the run was asked to end.
            RunBroken: it ended because it could not go on.
        """
        address_of = self.address_of(kind)

        def resolve(rank: int) -> tuple[str, int] | None:
            reason = self.folder.stop_reason()
            if reason is not None:
                raise RunStopped(reason)
            ended = self.folder.life().get("ended")
            if ended is not None:
                raise RunBroken(f"the run has ended ({ended['outcome']}): {ended['reason']}")
            return address_of(rank)

        return resolve
