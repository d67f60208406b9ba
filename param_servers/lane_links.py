"""What the lanes of a worker say to each other: packets between lane 0 and each of the others (`lanes.py`)."""

import contextlib
import select
import socket
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from multiprocessing.context import ForkProcess
from typing import NamedTuple

from param_servers.errors import LaneLost, RunStopped
from param_servers.timeouts import CLOSE_S, NAP_S, clock_of_a_loop
from param_servers.wire.messages import bytes_of, text_of

_HEADER = struct.Struct("<B?qq")
_MOST_BYTES = 1 << 16


class LaneKind(IntEnum):
    MEMORY, PULLED, WRITTEN, SUM, SUMMED, ANSWER, NUMBERS, STOPPED, FAILED = range(9)


class LaneMessage(NamedTuple):
    kind: LaneKind
    flag: bool
    first: int
    second: int
    text: bytes
    descriptors: list[int]
    """Files that came with the message."""


def coded(line: str) -> bytes:
    """What fits into a message."""
    return bytes_of(line)[: _MOST_BYTES // 2]


Patience = Callable[[], bool]
"""Whether it is over; to be asked at least each `NAP_S`."""


def _patience(timeout_s: float) -> Patience:
    """It begins now."""
    now_s = clock_of_a_loop().now_s
    give_up_s = now_s() + timeout_s
    return lambda: now_s() > give_up_s


def of_each(links: "Sequence[LaneLink]", expected: LaneKind) -> list[LaneMessage]:
    """A message of each of lane 0's others, which together have the time of one: that is what they wait for lane 0."""
    is_over = _patience(max((link.timeout_s for link in links), default=0.0))
    return [link.receive(expected, is_over) for link in links]


class LaneLink:
    """One end between lane 0 and another lane; packets, so a message comes whole or not at all."""

    def __init__(self, who: str, end: socket.socket, timeout_s: float, process: ForkProcess | None = None) -> None:
        self._who, self._end, self.timeout_s, self._process = who, end, timeout_s, process
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(
        self, kind: LaneKind, flag: bool = False, first: int = 0, second: int = 0, text: bytes = b"", fd: int = -1
    ) -> None:
        packet = _HEADER.pack(kind, flag, first, second) + text
        try:
            if fd < 0:
                self._end.send(packet)
            else:
                socket.send_fds(self._end, [packet], [fd])
        except (BrokenPipeError, ConnectionResetError):
            self._lost()

    def receive(self, expected: LaneKind, is_over: Patience | None = None) -> LaneMessage:
        is_over = is_over or _patience(self.timeout_s)
        while not self._poll.poll(NAP_S * 1000):
            # a fork of its environment's may hold its end of the socket open
            if self._process is not None and not self._process.is_alive() and not self._poll.poll(0):
                self._lost()
            if is_over():
                raise LaneLost(f"{self._who} has been silent for {self.timeout_s:g} s")
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._end, _MOST_BYTES, 1)
        except ConnectionResetError:
            packet, descriptors = b"", []
        if not packet:
            self._lost()
        self._check_not_failed(packet)
        kind, flag, first, second = _HEADER.unpack_from(packet)
        message = LaneMessage(LaneKind(kind), flag, first, second, packet[_HEADER.size :], descriptors)
        if message.kind == LaneKind.STOPPED:
            raise RunStopped(text_of(message.text))
        if message.kind != expected:
            raise RuntimeError(f"{self._who} said {message.kind.name} where {expected.name} was expected")
        return message

    def _lost(self) -> None:
        if self._process is None:
            raise LaneLost(f"{self._who} is gone")
        self._process.join(CLOSE_S)
        with contextlib.suppress(OSError):  # the call that heard of the end was not the one that hears its last word
            while packet := self._end.recv(_MOST_BYTES, socket.MSG_DONTWAIT):
                self._check_not_failed(packet)
        raise LaneLost(f"{self._who} died (exit code {self._process.exitcode})")

    def _check_not_failed(self, packet: bytes) -> None:
        if packet[0] == LaneKind.FAILED:
            raise LaneLost(f"{self._who} failed: {text_of(packet[_HEADER.size :])}")
