"""How the processes of a run find each other: through small files in the run folder, rewritten at each start."""

from __future__ import annotations

from collections.abc import Callable

from dba3c.run_folder import RunFolder
from param_servers.errors import RunBroken, RunStopped


class Rendezvous:
    """Addresses of the processes that others connect to, published by themselves."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def publisher(self, kind: str, rank: int, incarnation: int) -> Callable[[str, int], None]:
        """What a process calls with the host and port that it listens on; kind: "server", "rank", "learner"."""

        def publish(host: str, port: int) -> None:
            self.folder.publish(f"{kind}-{rank}", {"host": host, "port": port, "incarnation": incarnation})

        return publish

    def address_of(self, kind: str) -> Callable[[int], tuple[str, int] | None]:
        """Rank → where the process of this kind listens now; None while it has not said so."""

        def resolve(rank: int) -> tuple[str, int] | None:
            address = self.folder.published(f"{kind}-{rank}")
            return None if address is None else (str(address["host"]), int(address["port"]))

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
