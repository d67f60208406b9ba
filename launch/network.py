"""Where a process of a many-node run listens: an interface's address, and a port derived from the job."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import zlib
from collections.abc import Iterator

from dba3c.errors import UserError

FIRST_PORT, LAST_PORT = 20_000, 31_999
"""Below Linux's ephemeral range (from 32768 on), so that no outgoing connection sits on a port we derive."""

_SIOCGIFADDR = 0x8915


def candidate_ports(job: str, count: int = 32) -> Iterator[int]:
    """Ports to try for a job, the same in every process of it: jobs on shared nodes start at different places."""
    span = LAST_PORT - FIRST_PORT + 1
    start = zlib.crc32(job.encode()) % span
    stride = 1 + 2 * (zlib.crc32(b"stride" + job.encode()) % 199)  # odd and small: visits `count` distinct ports
    for attempt in range(count):
        yield FIRST_PORT + (start + attempt * stride) % span


def free_port(host: str, job: str, count: int = 32) -> int:
    """The first of the job's candidate ports that can be bound now.

    Whoever binds it next may still find it taken: bind, and on failure call again.

    Raises:
        UserError: none of them; the message names the range that was tried.
    """
    tried = list(candidate_ports(job, count))
    for port in tried:
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise UserError(f"no free port on {host}: tried {count} between {min(tried)} and {max(tried)} for job {job}")


def address_of_interface(name: str) -> str:
    """The IPv4 address of a network interface, e.g. ib0.

    Raises:
        UserError: no such interface, or it has no IPv4 address; the message lists those that have one.
    """
    address = _ipv4(name)
    if address is None:
        found = {other: _ipv4(other) for _, other in socket.if_nameindex()}
        listed = ", ".join(f"{other} ({value})" for other, value in found.items() if value)
        raise UserError(f"interface {name!r} has no IPv4 address here; these have: {listed or 'none'}")
    return address


def _ipv4(interface: str) -> str | None:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as query:
        try:
            answer = fcntl.ioctl(query.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def address_towards(peer: str) -> str:
    """This host's address on the route to ``peer``: what ``peer`` can call back.

    Nothing is sent. Raises UserError when ``peer`` has no address or no route leads there.
    """
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect((peer, 9))
        except OSError as error:
            raise UserError(f"no way to {peer} from {socket.gethostname()}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])


def listen_address(interface: str | None, peer: str, num_nodes: int) -> str:
    """The address to listen on and to publish: the interface's, else the one that other nodes can reach.

    Args:
        interface: what the user chose, e.g. ib0; None chooses by route.
        peer: a host that every rank can reach (`LaunchPlace.address`); "" where none is known.
        num_nodes: with one node nothing but this machine is let in.
    """
    if interface is not None:
        return address_of_interface(interface)
    if num_nodes == 1:
        return "127.0.0.1"
    return address_towards(peer or socket.gethostname())
