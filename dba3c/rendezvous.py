"""How the processes of a run find each other: through small files in the run folder, rewritten at each start."""

from __future__ import annotations

import time
from collections.abc import Callable

from dba3c.run_folder import RunFolder
from param_servers.errors import PeerLost

LOOK_S = 0.02


class Rendezvous:
    """Addresses of servers, published by themselves."""

    def __init__(self, folder: RunFolder, timeout_s: float) -> None:
        self.folder = folder
        self.timeout_s = timeout_s

    def publish_server(self, rank: int, incarnation: int) -> Callable[[str, int], None]:
        """What server ``rank`` calls with the host and port it listens on."""

        def publish(host: str, port: int) -> None:
            self.folder.publish(f"server-{rank}", {"host": host, "port": port, "incarnation": incarnation})

        return publish

    def address_of_server(self, rank: int) -> tuple[str, int]:
        """Where server ``rank`` listens now; waits for it to say so.

        Raises:
            PeerLost: it did not within the timeout.
        """
        deadline_s = time.monotonic() + self.timeout_s
        while (address := self.folder.published(f"server-{rank}")) is None:
            if time.monotonic() > deadline_s:
                raise PeerLost(f"server {rank} published no address within {self.timeout_s:.0f} s")
            time.sleep(LOOK_S)
        return str(address["host"]), int(address["port"])
