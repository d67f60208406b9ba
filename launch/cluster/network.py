"""Where a process of a many-node run listens: an address that the other nodes can reach."""

import contextlib
import socket
import time
from collections.abc import Callable

from dba3c.errors import UserError
from param_servers.wire import tcp_sockets
from param_servers.wire.tcp_sockets import LOOPBACK

LISTEN_HOST_VARIABLE = "DBA3C_LISTEN_HOST"
"""Tells a role's process where on its own node to listen; the configuration is the same on all nodes."""

RESOLVE_AGAIN_S = 1.0

_ELSEWHERE = "192.0.2.1"
"""An address of nobody (RFC 5737): the route to it is the default one."""


def address_towards(peer: str, wait_s: float = 0.0, say: Callable[[str], object] = print) -> str:
    """This host's address on the route to ``peer``: what ``peer`` can call back. Nothing is sent.

    A name that is loopback here names this very host (Debian and Ubuntu call every host 127.0.1.1 in its own
    /etc/hosts). To the others it is another address, on the route from here (`routed_address`).

    Args:
        wait_s: how long ``peer`` may have no address yet: a pod's name begins to exist when the pod is scheduled.
        say: told once when there is something to wait for.

    Raises:
        UserError: ``peer`` has no IPv4 address after ``wait_s``; no route leads there; or it is this
            host and others see none or several addresses of it.
    """
    address = _resolved(peer, wait_s, say)
    wants_one_machine = peer.split(".")[0] in ("127", "localhost")
    if address.startswith(LOOPBACK) and not wants_one_machine:
        return routed_address(f"{peer} is {address} to itself (/etc/hosts)")
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise UserError(f"no way to {peer} from {socket.gethostname()}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])


def routed_address(why: str) -> str:
    """This host's address on its default route; without one that of its only network.

    Raises:
        UserError: there is no network, or several; the message begins with ``why`` one is looked for.
    """
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.closing(probe), contextlib.suppress(OSError):  # no default route
        probe.connect((_ELSEWHERE, 9))
        address = str(probe.getsockname()[0])
        if not address.startswith(LOOPBACK):
            return address
    found = tcp_sockets.addresses()
    if len(found) == 1:
        return next(iter(found.values()))
    networks = ", ".join(f"{name} {address}" for name, address in found.items()) or "none but loopback"
    raise UserError(
        f"{why}, which no other host can reach: say which interface others see (--interface NAME); here: {networks}"
    )


def _resolved(peer: str, wait_s: float, say: Callable[[str], object]) -> str:
    if ":" in peer:
        raise UserError(f"{peer} is an IPv6 address, and links are IPv4's: say which interface (--interface NAME)")
    give_up_s, told = time.monotonic() + wait_s, False
    while True:
        try:
            return str(socket.getaddrinfo(peer, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
        except (OSError, UnicodeError) as error:  # UnicodeError: "a..b" is no name
            why = getattr(error, "strerror", None) or str(error)
            if isinstance(error, UnicodeError) or time.monotonic() >= give_up_s:
                waited = f"{peer} has had no address for {wait_s:.0f} s: " if wait_s else ""
                raise UserError(f"no way to {peer} from {socket.gethostname()}: {waited}{why}") from error
        if not told:
            say(f"{socket.gethostname()} waits at most {wait_s:.0f} s for {peer} to have an address ({why})")
            told = True
        time.sleep(min(RESOLVE_AGAIN_S, max(0.0, give_up_s - time.monotonic())))


def listen_address(
    interface: str | None, peer: str, num_nodes: int, wait_s: float = 0.0, say: Callable[[str], object] = print
) -> str:
    """The address to listen on and to publish: the interface's, else the one that other nodes can reach.

    Args:
        interface: what the user chose, e.g. ib0; None chooses by route.
        peer: a host that every rank can reach (`LaunchPlace.address`); "" where none is known.
        num_nodes: with one node nothing but this machine is let in.
        wait_s, say: as for `address_towards`.

    Raises:
        UserError: no address that others could reach is known.
        ConfigError: there is no such interface; the message names those there are.
    """
    if interface is not None:
        return tcp_sockets.listen_address("", interface)
    if num_nodes == 1:
        return "127.0.0.1"
    return address_towards(peer or socket.gethostname(), wait_s if peer else 0.0, say)
