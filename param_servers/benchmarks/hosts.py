"""Hosts that one machine emulates: their network, what befalls one of them, and how busy the machine is.

Hosts are network namespaces at a switch, whose links are limited in both directions. Root only.

The switch is a bridge in a namespace of its own, so that what this machine filters (Docker's rules, say) cannot stop
the frames. They do pass the kernel's hooks for filters there, of which none is set: without them (or without the
module br_netfilter) one server took 1.45 to 1.5 times the bound here instead of 1.1, with this version and the one
before; why was not found out. What a host sends waits in Linux's default queue; what the switch sends to it waits
50 ms at most in a plain one, of which what is too much is lost.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from typing import Any, Literal, NamedTuple

import torch

from param_servers.errors import ConfigError, PeerLost

PATIENCE_S = 4 * 3600.0
"""For the next result of a measurement: at D = 1,280 one takes an hour. A process that fails is noticed at once."""
FORK = multiprocessing.get_context("fork")
_CLONE_NEWNET = 0x40000000
HOST_PREFIX = "dba3c"
"""Of the hosts' namespaces, which count from 1."""
_NET, _SWITCH = "10.78.0", "dba3cswitch"
SWITCH_ADDRESS = f"{_NET}.254"
"""Of the switch itself: who talks to it has the limit of its own link, and all share no other."""
_MOST_HOSTS = 253
_TURN = Path("/run/dba3c-emulated-network.lock")
TURN_TIMEOUT_S = 120.0
"""For another emulated network on this machine to end: two of them would take each other's hosts away."""
_CONTROL_KEY = "net.ipv4.tcp_congestion_control"
_HOOKED = "net.bridge.bridge-nf-call-iptables=1"
_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
"""Entries that the kernel keeps in the ARP tables of all namespaces together, 1,024 by default: 64 hosts that all talk
to each other need 4,032, and without an entry a host is unreachable."""
_CONGESTION_CONTROLS = ("cubic", "reno")
"""The first that may be set: Linux' default, as on most clusters, not what this machine happens to use (BBR, say)."""


class Namespaces:
    """`count` hosts at 10.78.0.1 …, each with `rate_mbit` Mbit/s out and in (a token bucket). A context manager.

    What the switch sends to a host waits in `queue_bytes`; 0: in as many as leave within 50 ms. Raises ConfigError for
    more hosts than addresses.
    """

    def __init__(self, count: int, rate_mbit: float, queue_bytes: int = 0) -> None:
        if count > _MOST_HOSTS:
            raise ConfigError(f"{count} hosts: {_NET}.0/24 has addresses for at most {_MOST_HOSTS} and the switch")
        self.count, self.rate_mbit, self.queue_bytes = count, rate_mbit, queue_bytes
        self.congestion_control = "the machine's own"

    def __enter__(self) -> Namespaces:
        self._turn = _wait_for_our_turn()
        try:
            self._remove()
            if int(_NEIGHBOURS.read_text()) < 2 * self.count**2:
                _NEIGHBOURS.write_text(str(2 * self.count**2))  # it stays: nobody misses a smaller one
            _ip("netns", "add", _SWITCH)
            _ip("-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
            _ip("-n", _SWITCH, "addr", "add", f"{SWITCH_ADDRESS}/24", "dev", "bridge")
            _ip("-n", _SWITCH, "link", "set", "bridge", "up")
            _run("ip", "netns", "exec", _SWITCH, "sysctl", "-qw", _HOOKED, check=False)
            for host in range(1, self.count + 1):
                self._add(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._remove()
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)  # also of what was forked meanwhile
            os.close(self._turn)

    def address(self, host: int) -> str:
        """IPv4 address of host 0, 1, …"""
        return f"{_NET}.{host + 1}"

    def enter(self, host: int) -> None:
        """Move the calling thread into host 0, 1, …"""
        with open(f"/var/run/netns/{HOST_PREFIX}{host + 1}") as network:
            enter_network(network.fileno())

    def set_rate(self, host: int, rate_mbit: float) -> None:
        """From now on host 0, 1, … has this rate, out and in."""
        bucket = self._bucket(rate_mbit)
        _run("tc", "-n", f"{HOST_PREFIX}{host + 1}", "qdisc", "change", "dev", "eth0", "root", "handle", "1:", *bucket)
        _run("tc", "-n", _SWITCH, "qdisc", "change", "dev", f"port{host + 1}", "root", *bucket)

    def unplug(self, host: int) -> None:
        """Host 0, 1, … hears and says nothing more; nobody is told."""
        _ip("-n", _SWITCH, "link", "set", f"port{host + 1}", "down")

    def plug(self, host: int) -> None:
        """Undo `unplug`."""
        _ip("-n", _SWITCH, "link", "set", f"port{host + 1}", "up")

    def _bucket(self, rate_mbit: float) -> list[str]:
        queue = ["limit", str(self.queue_bytes)] if self.queue_bytes else ["latency", "50ms"]
        return ["tbf", "rate", f"{rate_mbit}mbit", "burst", "64k", *queue]

    def _add(self, host: int) -> None:
        name, port = f"{HOST_PREFIX}{host}", f"port{host}"
        limit = self._bucket(self.rate_mbit)
        _ip("netns", "add", name)
        _ip("-n", _SWITCH, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", _SWITCH, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{_NET}.{host}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        for control in _CONGESTION_CONTROLS:
            if _run("ip", "netns", "exec", name, "sysctl", "-qw", f"{_CONTROL_KEY}={control}", check=False):
                self.congestion_control = control
                break
        _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", *limit)
        _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "parent", "1:1", "pfifo_fast")
        _run("tc", "-n", _SWITCH, "qdisc", "add", "dev", port, "root", *limit)

    def _remove(self) -> None:
        for name in (*(f"{HOST_PREFIX}{host}" for host in range(1, self.count + 1)), _SWITCH):
            _run("ip", "netns", "del", name, check=False)  # and what is in it


@contextmanager
def in_network_of_switch() -> Iterator[None]:
    """The calling thread is in the switch's network meanwhile; sockets and threads that it makes there stay there: a
    server that is on none of the hosts."""
    with open("/proc/thread-self/ns/net") as own, open(f"/var/run/netns/{_SWITCH}") as switch:
        enter_network(switch.fileno())
        try:
            yield
        finally:
            enter_network(own.fileno())


def enter_network(descriptor: int) -> None:
    """The calling thread moves into this network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed: network namespaces need root")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, check: bool = True) -> bool:
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment, check=False)
    if check and done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()} (network namespaces need root)")
    return done.returncode == 0


def _wait_for_our_turn() -> int:
    """The descriptor that holds it. Raises ConfigError when another emulated network lasts too long."""
    turn = os.open(_TURN, os.O_RDWR | os.O_CREAT, 0o600)
    deadline_s = time.monotonic() + TURN_TIMEOUT_S
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return turn
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                os.close(turn)
                words = f"another emulated network has been in use on this machine for {TURN_TIMEOUT_S:g} s ({_TURN})"
                raise ConfigError(words) from None
            time.sleep(0.1)


# -- the processes on them ---------------------------------------------------------------------------------------------


class Processes:
    """Forked processes 0, 1, … of a measurement, of which none is left behind. A context manager that starts them.

    Args:
        be: (number, incarnation), called in the process with one torch thread; what it returns, but None, is a result.
    """

    def __init__(self, count: int, be: Callable[[int, int], Any]) -> None:
        self._be, self._pids, self._results = be, FORK.Array("i", count), FORK.Queue()
        self._running: dict[int, Any] = {}

    def __enter__(self) -> Processes:
        # as roles are forked: or all of them collect the parent's garbage in the same step, 0.1 s of a core each
        gc.collect()
        gc.freeze()
        for number in range(len(self._pids)):
            self.start(number)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        gc.unfreeze()
        for number in list(self._running):
            self._running[number].join(0 if error else 30)
            self.kill(number)

    def start(self, number: int, incarnation: int = 0) -> None:
        """Process `number`, or its successor."""
        process = FORK.Process(target=self._main, args=(number, incarnation), daemon=True)
        process.start()
        self._running[number] = process

    def kill(self, number: int) -> None:
        """At once; nobody takes that for a failure."""
        process = self._running.pop(number)
        process.kill()
        process.join()

    def _main(self, number: int, incarnation: int) -> None:
        torch.set_num_threads(1)
        self._pids[number] = os.getpid()
        result = self._be(number, incarnation)
        if result is not None:
            self._results.put(result)
        self._results.close()
        self._results.join_thread()
        os._exit(0)

    def snapshot(self) -> Snapshot:
        """Of the machine, and of all processes by their numbers."""
        return Snapshot.now(self._pids[:])

    def result(self, look: Callable[[], None] = lambda: None) -> Any:
        """The next one that comes. `look` is called 20 times a second meanwhile.

        Raises:
            PeerLost: a process has failed (its trace is on stderr), or no result comes in time.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with suppress(Empty):
                return self._results.get(timeout=0.05)
            look()
            if failed := [number for number, process in self._running.items() if _has_failed(process)]:
                raise PeerLost(f"of the case's processes {failed[0]} failed, and {len(failed) - 1} others")
        raise PeerLost(f"no process had a result within {PATIENCE_S:g} s")


def _has_failed(process: Any) -> bool:
    """Whether a child has ended with an error. It is not reaped: with it would go its time, which a `Snapshot` of the
    others still needs, and its parent would have it as another's."""
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it was, where another one has been started since
        return bool(process.exitcode)
    return ended is not None and ended.si_status != 0


# -- what befalls a host -----------------------------------------------------------------------------------------------


FaultKind = Literal["slow host", "unplugged host", "dead server"]
_SLOWER = 10.0
"""A slow host's rate is divided by it."""


class Fault(NamedTuple):
    """The last worker's host falls to a tenth of its rate, or loses its network; the host of the last
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
    """Does one fault to a host of a case: `look` often, until the workers have ended.

    Args:
        reached: the step that worker 0 has pulled last.
        victim, host: the last worker, or the last server: its process's number, and its host.
    """

    def __init__(
        self, fault: Fault, hosts: Namespaces, processes: Processes, victim: int, host: int, reached: Callable[[], int]
    ) -> None:
        self._fault, self._hosts, self._processes, self._reached = fault, hosts, processes, reached
        self._victim, self._host, self._replaced = victim, host, False
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
            self._processes.start(self._victim, incarnation=1)

    def _strike(self) -> None:
        if self._fault.kind == "slow host":
            self._hosts.set_rate(self._host, self._hosts.rate_mbit / _SLOWER)
            return
        self._hosts.unplug(self._host)
        if self._fault.kind == "dead server":
            self._processes.kill(self._victim)


# -- how busy the machine is, and who makes it so: differences of what Linux counts in /proc ---------------------------


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING_FOR_DISKS, _STOLEN, _ALL_BUT_GUESTS = 3, 4, 7, 8
"""Columns of /proc/stat: user nice system idle iowait irq softirq steal; guests' time is part of user and nice."""
_FLAGS, _TIMES, _OF_THE_KERNEL = 6, slice(11, 15), 0x00200000
"""Of /proc/PID/stat behind the name: flags, and utime stime cutime cstime; PF_KTHREAD."""


class Load(NamedTuple):
    """What happened between two snapshots."""

    elapsed_s: float
    busy_share: float
    """Of all processors, by all that ran: also by what is not of the measurement, and by the host's other guests."""
    own_share: float
    """Of all processors, by the processes that were watched. Work of the kernel that belongs to nobody is not in it."""
    others_share: float
    """Of all processors, by other processes and the host's other guests. The kernel's own work, such as passing packets
    on between hosts that are emulated, is in neither."""
    cpu_s: list[float]
    """Of each process that was watched."""


class Snapshot(NamedTuple):
    """Counters at one moment."""

    at_s: float
    busy_ticks: int
    all_ticks: int
    stolen_ticks: int
    process_ticks: dict[int, int]
    """Of all that are no thread of the kernel, with what ended children of theirs had."""
    watched_ticks: list[int]

    @classmethod
    def now(cls, pids: Iterable[int]) -> Snapshot:
        """The machine, and these processes; 0 for one that is no more."""
        with open("/proc/stat", encoding="ascii") as file:
            busy, ticks, stolen = machine_ticks(file.readline())
        watched = {pid: _ticks_of(pid) for pid in pids}
        others = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        of_others = {pid: sum(_ticks_of(pid)) for pid in others if pid not in watched}
        own = [of_itself for of_itself, _ in watched.values()]
        return cls(time.perf_counter(), busy, ticks, stolen, of_others, own)

    def __sub__(self, before: Snapshot) -> Load:
        spent = [max(0, now - then) for now, then in zip(self.watched_ticks, before.watched_ticks, strict=True)]
        others = (max(0, now - before.process_ticks.get(pid, 0)) for pid, now in self.process_ticks.items())
        ticks = max(1, self.all_ticks - before.all_ticks)
        return Load(
            elapsed_s=self.at_s - before.at_s,
            busy_share=(self.busy_ticks - before.busy_ticks) / ticks,
            own_share=sum(spent) / ticks,
            others_share=(sum(others) + self.stolen_ticks - before.stolen_ticks) / ticks,
            cpu_s=[each / _TICKS_PER_S for each in spent],
        )


def machine_ticks(line: str) -> tuple[int, int, int]:
    """(busy, all, by other guests of the host) of the first line of /proc/stat."""
    ticks = [int(word) for word in line.split()[1 : 1 + _ALL_BUT_GUESTS]]
    return sum(ticks) - ticks[_IDLE] - ticks[_WAITING_FOR_DISKS], sum(ticks), ticks[_STOLEN]


def _ticks_of(pid: int) -> tuple[int, int]:
    """(its own, of children that have ended); none of a thread of the kernel."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    words = stat.rpartition(")")[2].split()
    if int(words[_FLAGS]) & _OF_THE_KERNEL:
        return 0, 0
    user, system, childrens_user, childrens_system = map(int, words[_TIMES])
    return user + system, childrens_user + childrens_system
