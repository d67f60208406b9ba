"""How TCP sockets are opened here, all of them non-blocking, on which address, and how their errors read."""

import contextlib
import errno
import fcntl
import os
import socket
import struct

from param_servers.errors import ConfigError

LOOPBACK = ("127.", "::1", "localhost")
"""How the addresses begin that no other host has."""
WILDCARDS = ("", "0", "0.0.0.0", "::", "*")
UNSENT_BYTES = 16 << 10
MOST_SILENCE_S = 3.0 * 32767
"""27 hours: the kernel counts no more seconds between two of its looks, and refuses the socket that is told more."""
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_TCP_NOTSENT_LOWAT = 25  # linux/tcp.h; the socket module of a Python that was built for an old libc (conda's) lacks it


def listen_address(listen_host: str, interface: str | None) -> str:
    """Where to listen: the IPv4 address of `interface` if there is one, else `listen_host`.

    Raises:
        ConfigError: there is no such interface, or it has no IPv4 address; the message names those there are. Or
            `listen_host` is every address of this host: the others are told where to dial, and would dial themselves.
    """
    if interface is None:
        if listen_host in WILDCARDS:
            raise ConfigError(
                f"listen_host {listen_host!r} is no address that others could dial: give that of one interface, or "
                "its name as interface (e.g. eth0)"
            )
        return listen_host
    try:
        return _address_of(interface)
    except OSError as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        line = f"network interface {interface} has no IPv4 address ({error.strerror}); interfaces here: {names}"
        raise ConfigError(line) from error


def addresses() -> dict[str, str]:
    """Interface → its IPv4 address, of those that have one which other hosts may reach."""
    found = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # no IPv4 address
            found[name] = _address_of(name)
    return {name: address for name, address in found.items() if not address.startswith(LOOPBACK)}


def open_listener(host: str, port: int, window_bytes: int | None) -> socket.socket:
    """A socket that listens; port 0: any that is free. For `window_bytes` see `Hub.listen`.

    Raises:
        OSError: the address is taken, or none of this host.
    """
    listener = socket.create_server((host, port), family=_family(host), backlog=512)
    listener.setblocking(False)
    if window_bytes is not None and not host.startswith(LOOPBACK):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    return listener


def accept(listener: socket.socket, silence_timeout_s: float) -> tuple[socket.socket, str] | None:
    """The connection that has waited longest, and its host; None when there is none any more.

    Raises:
        OSError: it cannot be accepted now, because no more files can be opened, say. It still waits.
    """
    try:
        sock, address = listener.accept()
    except (BlockingIOError, ConnectionError):
        return None
    _tune(sock, silence_timeout_s)
    return sock, str(address[0])


def begin_to_connect(address: tuple[str, int], silence_timeout_s: float) -> socket.socket:
    """A socket that is connected once it can be written.

    Raises:
        OSError: it never will be, as far as is known now.
    """
    sock = socket.socket(_family(address[0]), socket.SOCK_STREAM)
    _tune(sock, silence_timeout_s)
    try:
        sock.connect(address)
    except OSError as error:
        if error.errno != errno.EINPROGRESS:
            sock.close()
            raise
    return sock


def hold_little_unsent(sock: socket.socket) -> None:
    """Let the kernel take `UNSENT_BYTES` beyond what it has sent, not megabytes.

    On loopback it sends at once, and less at a time would only be more work.
    """
    with contextlib.suppress(OSError):  # a broken link is noticed by the next poll
        if not str(sock.getpeername()[0]).startswith(LOOPBACK):
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def reason_of(error: Exception) -> str:
    """One line on why a connection broke or could not be made."""
    if isinstance(error, socket.gaierror):  # its numbers are not the kernel's
        return error.strerror or "no such host"
    if isinstance(error, OSError) and error.errno:
        return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
    return str(error) or type(error).__name__


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _tune(sock: socket.socket, silence_timeout_s: float) -> None:
    """Non-blocking, no Nagle delay, and an error within about `silence_timeout_s` when the other host is silent."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    silence_timeout_s = min(silence_timeout_s, MOST_SILENCE_S)
    for option, value in (
        (socket.TCP_KEEPIDLE, max(1, int(silence_timeout_s / 3))),
        (socket.TCP_KEEPINTVL, max(1, int(silence_timeout_s / 9))),
        (socket.TCP_KEEPCNT, 3),
        # Also covers a peer that no longer reads: without it, data in flight is resent for a quarter of an hour.
        (socket.TCP_USER_TIMEOUT, int(silence_timeout_s * 1000)),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
