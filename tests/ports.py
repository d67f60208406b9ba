"""Ports for tests that have to tell one beforehand."""

import itertools
import os
import socket

_OF_THIS_PROCESS = itertools.count(20_000 + os.getpid() * 37 % 12_000)


def free_port() -> int:
    """Of loopback, another one each time; below Linux's ephemeral range, so that no outgoing connection takes it."""
    for port in _OF_THIS_PROCESS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("count() does not end")
