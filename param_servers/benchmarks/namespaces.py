"""Hosts with slow links on one machine: network namespaces at a switch, each limited in both directions. Root only.

The switch is a bridge in a namespace of its own, so that what this machine filters (Docker's rules, say) cannot stop
the frames. They do pass the kernel's hooks for filters there, of which none is set: without them (or without the
module br_netfilter) one server took 1.45 to 1.5 times the bound here instead of 1.1, with this version and the one
before; why was not found out. What a host sends waits in Linux's default queue; what the switch sends to it waits
50 ms at most in a plain one, of which what is too much is lost.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType

from param_servers.errors import ConfigError

_CLONE_NEWNET = 0x40000000
_NET, _NAME, _SWITCH = "10.78.0", "dba3c", "dba3cswitch"
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

    What the switch sends to a host waits in `queue_bytes`; 0: in as many as leave within 50 ms.
    """

    def __init__(self, count: int, rate_mbit: float, queue_bytes: int = 0) -> None:
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
            _ip("-n", _SWITCH, "link", "set", "bridge", "up")
            _run("ip", "netns", "exec", _SWITCH, "sysctl", "-qw", _HOOKED, check=False)
            for host in range(1, self.count + 1):
                self._add(host)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        try:
            self._remove()
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)  # also of what was forked meanwhile
            os.close(self._turn)

    def address(self, host: int) -> str:
        """IPv4 address of host 0, 1, …"""
        return f"{_NET}.{host + 1}"

    def enter(self, host: int) -> None:
        """Move the calling process into host 0, 1, …"""
        descriptor = os.open(f"/var/run/netns/{_NAME}{host + 1}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns failed: network namespaces need root")
        finally:
            os.close(descriptor)

    def set_rate(self, host: int, rate_mbit: float) -> None:
        """From now on host 0, 1, … has this rate, out and in."""
        bucket = self._bucket(rate_mbit)
        _run("tc", "-n", f"{_NAME}{host + 1}", "qdisc", "change", "dev", "eth0", "root", "handle", "1:", *bucket)
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
        name, port = f"{_NAME}{host}", f"port{host}"
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
        for name in (*(f"{_NAME}{host}" for host in range(1, self.count + 1)), _SWITCH):
            _run("ip", "netns", "del", name, check=False)  # and what is in it


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
