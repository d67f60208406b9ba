"""What happens to a host in the middle of a case, when, and what the run is told to put up with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from param_servers.benchmarks.namespaces import Namespaces
from param_servers.errors import ConfigError

FaultKind = Literal["slow host", "unplugged host", "dead server"]
KINDS: tuple[str, ...] = get_args(FaultKind)
_SLOWER = 10.0
"""A slow host's rate is divided by it."""


class Fault(NamedTuple):
    """One of `KINDS`: the last worker's host falls to a tenth of its rate, or loses its network; the host of the last
    server dies and another takes its place, where the server goes on from a checkpoint.

    Times are of this machine, not dilated.
    """

    kind: FaultKind
    at_step: int
    """It happens when worker 0 has pulled this one."""
    step_timeout_s: float
    """As the option of that name."""
    replaced_s: float
    """From the death of a server's host to its successor's start."""
    checkpoint_every_steps: int
    """A server's successor can go back to one of these."""

    def check(self, workers: int, servers: int, colocated: bool) -> None:
        """Raises ConfigError where there is nobody whom it could happen to."""
        if self.kind == "dead server" and (servers < 2 or colocated):
            raise ConfigError(f"a dead server needs at least 2 on hosts of their own, not {servers}")
        if self.kind != "dead server" and workers < 2:
            raise ConfigError(f"a fault of a worker's host needs at least 2 workers, not {workers}")

    @property
    def needs_checkpoints(self) -> bool:
        """In a folder that all servers share."""
        return self.kind == "dead server"

    @property
    def lost_workers(self) -> int:
        """That never end, having no network."""
        return int(self.kind == "unplugged host")


class Striking:
    """Does one fault to the hosts of a case: `look` often, until the workers have ended. A context manager.

    Args:
        reached: the step that worker 0 has pulled last.
        victim: the last worker, or the last server: its process's number, and its host.
        kill, start: end the victim's process, and start its successor there.
    """

    def __init__(
        self,
        fault: Fault,
        hosts: Namespaces,
        victim: tuple[int, int],
        reached: Callable[[], int],
        kill: Callable[[], None],
        start: Callable[[], None],
    ) -> None:
        self._fault, self._hosts, (self.victim, self._host) = fault, hosts, victim
        self._reached, self._kill, self._start = reached, kill, start
        self._replaced = False
        self.struck_s: float | None = None
        """When (time.perf_counter); None: not yet."""

    def look(self) -> None:
        """Does what is due now."""
        fault, now_s = self._fault, time.perf_counter()
        if self.struck_s is None:
            if self._reached() >= fault.at_step:
                self.struck_s = now_s
                self._strike()
        elif fault.kind == "dead server" and not self._replaced and now_s - self.struck_s >= fault.replaced_s:
            self._replaced = True
            self._hosts.plug(self._host)
            self._start()

    def _strike(self) -> None:
        if self._fault.kind == "slow host":
            self._hosts.set_rate(self._host, self._hosts.rate_mbit / _SLOWER)
            return
        self._hosts.unplug(self._host)
        if self._fault.kind == "dead server":
            self._kill()


def options(fault: Fault | None) -> dict[str, Any]:
    """Of `ExchangeConfig`."""
    if fault is None:
        return {"checkpoint_every_steps": 0}
    every = fault.checkpoint_every_steps if fault.needs_checkpoints else 0
    return {"checkpoint_every_steps": every, "step_timeout_s": fault.step_timeout_s}
