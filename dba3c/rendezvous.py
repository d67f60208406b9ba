"""How the processes of a run find each other: through small files in the run folder, rewritten at each start."""

from __future__ import annotations

from collections.abc import Callable

from dba3c.run_folder import RunFolder


class Rendezvous:
    """Addresses of servers, published by themselves."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def publish_server(self, rank: int, incarnation: int) -> Callable[[str, int], None]:
        """What server ``rank`` calls with the host and port that it listens on."""

        def publish(host: str, port: int) -> None:
            self.folder.publish(f"server-{rank}", {"host": host, "port": port, "incarnation": incarnation})

        return publish

    def address_of_server(self, rank: int) -> tuple[str, int] | None:
        """Where server ``rank`` listens now; None while it has not said so."""
        address = self.folder.published(f"server-{rank}")
        return None if address is None else (str(address["host"]), int(address["port"]))
