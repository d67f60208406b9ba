"""The address of a network interface."""

import fcntl
import socket
import struct

from param_servers.errors import ConfigError

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def listen_address(listen_host: str, interface: str | None) -> str:
    """Where to listen: the IPv4 address of `interface` if there is one, else `listen_host`.

    Raises:
        ConfigError: there is no such interface, or it has no IPv4 address; the message names those there are.
    """
    if interface is None:
        return listen_host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            line = f"network interface {interface} has no IPv4 address ({error.strerror}); interfaces here: {names}"
            raise ConfigError(line) from error
