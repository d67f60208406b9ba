"""The address of a network interface."""

import contextlib
import fcntl
import socket
import struct

from param_servers.errors import ConfigError

LOOPBACK = "127."
WILDCARDS = ("", "0", "0.0.0.0", "::", "*")
_SIOCGIFADDR = 0x8915  # linux/sockios.h


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


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
