"""Hosts with slow links on one machine: network namespaces on a bridge, each limited in both directions. Root only."""

from __future__ import annotations

import ctypes
import os
import subprocess
from types import TracebackType

_CLONE_NEWNET = 0x40000000
_NET = "10.78.0"
_CONTROL_KEY = "net.ipv4.tcp_congestion_control"
_CONGESTION_CONTROLS = ("cubic", "reno")
"""The first that may be set: Linux' default, as on most clusters, not what this machine happens to use (BBR, say)."""


class Namespaces:
    """`count` hosts at 10.78.0.1 …, each with `rate_mbit` Mbit/s out and in (a token bucket). A context manager.

    Args:
        prefix: of the names, so that several can exist; at most 6 characters.
    """

    def __init__(self, count: int, rate_mbit: float, prefix: str = "dba3c") -> None:
        self.count, self.rate_mbit, self.prefix = count, rate_mbit, prefix
        self.congestion_control = "the machine's own"

    def __enter__(self) -> Namespaces:
        self._remove()
        try:
            _ip("link", "add", f"{self.prefix}br", "type", "bridge")
            _ip("link", "set", f"{self.prefix}br", "up")
            for host in range(1, self.count + 1):
                self._add(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, host: int) -> str:
        """IPv4 address of host 0, 1, …"""
        return f"{_NET}.{host + 1}"

    def enter(self, host: int) -> None:
        """Move the calling process into host 0, 1, …"""
        descriptor = os.open(f"/var/run/netns/{self.prefix}{host + 1}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns failed: network namespaces need root")
        finally:
            os.close(descriptor)

    def _add(self, host: int) -> None:
        name, outside = f"{self.prefix}{host}", f"{self.prefix}v{host}"
        limit = ["root", "tbf", "rate", f"{self.rate_mbit}mbit", "burst", "64k", "latency", "50ms"]
        _ip("netns", "add", name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", outside, "master", f"{self.prefix}br", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{_NET}.{host}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        for control in _CONGESTION_CONTROLS:
            if _run("ip", "netns", "exec", name, "sysctl", "-qw", f"{_CONTROL_KEY}={control}", check=False):
                self.congestion_control = control
                break
        _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *limit)
        _run("tc", "qdisc", "add", "dev", outside, *limit)

    def _remove(self) -> None:
        for host in range(1, self.count + 1):
            _run("ip", "link", "del", f"{self.prefix}v{host}", check=False)
            _run("ip", "netns", "del", f"{self.prefix}{host}", check=False)
        _run("ip", "link", "del", f"{self.prefix}br", check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, check: bool = True) -> bool:
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment, check=False)
    if check and done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()} (network namespaces need root)")
    return done.returncode == 0
