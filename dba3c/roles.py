"""What the processes of a run are: who one is, how it finds the others, and the one table of what each role does.

They find each other through small files in the run folder, rewritten at each start.
"""

import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pkgutil import resolve_name

from dba3c.config import TrainConfig
from dba3c.errors import UserError, warn_on_stderr
from dba3c.runs import host_facts
from dba3c.runs.folder import RunFolder
from param_servers.errors import ConfigError, RunBroken, RunStopped, Superseded
from param_servers.wire.tcp_sockets import LOOPBACK

ROLES = {
    "server": "dba3c.assembly.exchanges:server",  # hold one shard of the parameters
    "worker": "dba3c.workers.worker:worker",  # step environments and compute gradients
    "learner": "dba3c.central.learner:learner",  # choose actors' actions and train on what they did
    "actor": "dba3c.central.actor:actor",  # step environments as a learner says
    "monitor": "dba3c.metrics.monitor:monitor",  # read the metrics of all, feed the trackers
    "evaluator": "dba3c.evaluation.evaluator:evaluator",  # play full games with each new checkpoint
    "recorder": "dba3c.recording.recorder:recorder",  # film a game of every k-th checkpoint
}
"""Where each role's whole life is, by module: a process loads its own only."""


PER_START = 250
"""Incarnations that one start of a rank may use up: at 5 restarts an hour those of two days. A server's number ends in
the term (`param_servers.servers.server.MOST_INCARNATION`), after 2,000 starts."""
PUBLISH_TIMEOUT_S, PUBLISH_AGAIN_S = 60.0, 2.0
"""For a full disk to take an address: a process that came back would else have used up its restarts within seconds."""


@dataclass(frozen=True)
class RunProcess:
    """One process of a run."""

    folder: RunFolder
    config: TrainConfig
    rank: int
    incarnation: int
    lane: int = 0
    """Of a worker: which of its processes this is."""

    @property
    def secret(self) -> bytes:
        """What proves that a peer belongs to this run."""
        return self.folder.secret().encode()

    def publisher(self, kind: str) -> Callable[[str, int], None]:
        """What it calls with the host and port that it listens on; kind: "server", "rank", "learner".

        Raises (when called):
            Superseded: a newer process of this name has said where it listens, and is the one to be dialled.
            UserError: it cannot be written down; once it could, a disk that refuses is told of.
        """
        is_known = False

        def publish(host: str, port: int) -> None:
            nonlocal is_known
            name = f"{kind}-{self.rank}"
            address: dict[str, str | int] = {"host": host, "port": port, "incarnation": self.incarnation}
            if host.startswith(LOOPBACK):
                address |= {"only_on": socket.gethostname(), "only_in": host_facts.namespace("net")}
            deadline_s = time.monotonic() + PUBLISH_TIMEOUT_S
            while True:
                try:
                    there = self.folder.published(name) or {}
                    if there.get("incarnation", 0) > self.incarnation:
                        raise Superseded(f"a newer {name}, incarnation {there['incarnation']}, listens elsewhere")
                    if there != address:
                        self.folder.publish(name, address)
                    is_known = True
                    return
                except UserError as error:
                    if is_known:
                        warn_on_stderr(f"{error}; who asks where this {kind} listens may not learn it")
                        return
                    full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (ENOSPC, EDQUOT)
                    if not full or time.monotonic() > deadline_s:
                        raise
                    warn_on_stderr(f"{error}; trying again")
                    time.sleep(PUBLISH_AGAIN_S)

        return publish

    def address_of(self, kind: str) -> Callable[[int], tuple[str, int] | None]:
        """Rank → where the process of this kind listens now; None while it has not said so, or cannot be heard: a
        shared file system may be away for a while, and who asks has a patience of his own.

        Raises (when called):
            ConfigError: it listens on the loopback of another host, where this one would dial itself.
        """

        here = host_facts.namespace("net")

        def resolve(rank: int) -> tuple[str, int] | None:
            try:
                address = self.folder.published(f"{kind}-{rank}")
            except UserError as error:
                if not isinstance(error.__cause__, OSError):
                    raise
                return None
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
            try:
                reason, ended = self.folder.stop_reason(), self.folder.life().get("ended")
                address = address_of(rank) if reason is None and ended is None else None
            except (UserError, OSError) as error:
                if not isinstance(error.__cause__ or error, OSError):
                    raise
                return None
            if reason is not None:
                raise RunStopped(reason)
            if ended is not None:
                raise RunBroken(f"the run has ended ({ended['outcome']}): {ended['reason']}")
            return address

        return resolve


def seed_own_code(role: str, process: RunProcess) -> None:
    """Seed the generators that all of a process's code shares, and forks begin with alike: environments, networks and
    losses of the user's own may draw from them; ours has generators of its own."""
    import numpy as np  # not above: who only looks for an address does not wait for them
    import torch

    words = process.config.run.seed, list(ROLES).index(role), process.rank, process.incarnation, process.lane
    seed = int(np.random.SeedSequence(words).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def play(role: str, process: RunProcess) -> str:
    """Be that role until the run is over.

    Returns:
        The reason the run ended.
    """
    seed_own_code(role, process)
    return resolve_name(ROLES[role])(process)
