"""Sockets or shared memory between an actor and its learner: ``python -m dba3c.benchmarks.transports``.

One process says what a group of environments shows, the other answers with actions, in turn, as fast as they can; the
frames are written anew each time. "tcp" and "unix" send header and frames through a stream socket; "shared memory"
writes the frames into a segment that both map, and rings with a header on a unix socket; the learner copies them into
its unroll. Processor time of both ends per environment step, and the round trip.
"""

from __future__ import annotations

import json
import mmap
import select
import socket
import statistics
import time
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import tyro

HEADER_BYTES = 64
PATIENCE_S = 30.0
_FRAME_BYTES = 84 * 84 + 5
_SPARE_ROWS = 24  # an unroll's rows: the learner writes to memory that is not in its cache


class Rate(NamedTuple):
    """One repeat."""

    actor_us: float
    """CPU microseconds per environment step."""
    learner_us: float
    round_trip_us: float


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    envs: int = 16
    """Environments of a group: a message."""
    seconds: float = 2.0
    repeats: int = 5


def measure(transport: str, arguments: Arguments) -> Rate:
    """One repeat."""
    context = get_context("fork")
    ours, theirs = _pair(transport)
    segment = mmap.mmap(-1, arguments.envs * _FRAME_BYTES)  # inherited
    shared = transport == "shared memory"
    told = context.Queue()
    process = context.Process(target=_actor, args=(theirs, segment if shared else None, arguments, told), daemon=True)
    process.start()
    theirs.close()
    learner_s, steps = _learner(ours, segment if shared else None, arguments)
    ours.close()
    actor_s, round_trip_s = told.get(timeout=PATIENCE_S)
    process.join(timeout=PATIENCE_S)
    return Rate(1e6 * actor_s / steps, 1e6 * learner_s / steps, 1e6 * round_trip_s)


def _pair(transport: str) -> tuple[socket.socket, socket.socket]:
    if transport != "tcp":
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def _actor(link: socket.socket, segment: mmap.mmap | None, arguments: Arguments, told: Any) -> None:
    size = arguments.envs * _FRAME_BYTES
    message = memoryview(segment) if segment is not None else memoryview(bytearray(size))
    frames = np.frombuffer(message, np.uint8)
    source = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    header, answer = bytes(HEADER_BYTES), memoryview(bytearray(HEADER_BYTES + 8 * arguments.envs))
    steps, began_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < arguments.seconds:
        frames[:] = source
        _send(link, header, None if segment is not None else message)
        _receive(link, answer)
        steps += 1
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    link.shutdown(socket.SHUT_WR)
    told.put((cpu_s, wall_s / max(1, steps)))


def _learner(link: socket.socket, segment: mmap.mmap | None, arguments: Arguments) -> tuple[float, int]:
    size = arguments.envs * _FRAME_BYTES
    rows = [memoryview(bytearray(size)) for _ in range(_SPARE_ROWS)]
    header, answer = memoryview(bytearray(HEADER_BYTES)), bytes(HEADER_BYTES + 8 * arguments.envs)
    if segment is None:  # one wake-up for a whole message
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HEADER_BYTES + size)
    steps, cpu_s = 0, time.process_time()
    # A read that begins before the whole message is there would wait for its rest, of which the kernel does not tell.
    while select.select([link], [], [], PATIENCE_S)[0] and _receive(link, header):
        row = rows[steps % _SPARE_ROWS]
        if segment is None:
            _receive(link, row)
        else:
            row[:] = segment[:size]
        link.sendall(answer)
        steps += 1
    return time.process_time() - cpu_s, steps * arguments.envs


def _send(link: socket.socket, header: bytes, payload: memoryview | None) -> None:
    if payload is None:
        link.sendall(header)
        return
    sent = link.sendmsg([header, payload])
    if sent < len(header) + len(payload):
        link.sendall(payload[max(0, sent - len(header)) :])


def _receive(link: socket.socket, into: memoryview) -> bool:
    have = 0
    while have < len(into):
        count = link.recv_into(into[have:])
        if count == 0:
            return False
        have += count
    return True


def main() -> None:
    """Print the table, each transport in turn."""
    arguments = tyro.cli(Arguments, description=__doc__)
    print(json.dumps(run(arguments), indent=1))


def run(arguments: Arguments) -> dict[str, dict[str, float]]:
    """Medians of the repeats, by transport."""
    rates: dict[str, list[Rate]] = {"tcp": [], "unix": [], "shared memory": []}
    for _ in range(arguments.repeats):
        for transport, found in rates.items():
            found.append(measure(transport, arguments))
    return {
        transport: {name: statistics.median(getattr(rate, name) for rate in found) for name in Rate._fields}
        for transport, found in rates.items()
    }


if __name__ == "__main__":
    main()
