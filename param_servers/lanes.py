"""One gradient from all cores of a node: the lanes of a worker add theirs up in memory that they share.

    def lane(lane: Lane) -> str:                        # in each of the processes
        exchange = lane.exchange(connect, numel)        # `connect` makes the worker's own exchange, in lane 0 alone
        ...                                             # any loop of pull and push
    reason = run_in_lanes(count, lane, timeouts=timeouts)

Lane 0 is the process that calls; the others are forked from it. Every lane has a `GradientExchange`, so a loop does not
know that it is one of several. The gradient that travels is the mean of the lanes', which all see as many samples, and
is summed in the lanes' order, each lane adding up its own part of all rows:

    lane 0                                              every other lane
    pull the exchange, copy into shared memory  PULLED →    take the parameters
    write its row                             ← WRITTEN     write its row
    add up its part                             SUM →       add up its part
    push the mean                             ← SUMMED
                                                ANSWER →

The memory has no name (memfd), so nothing is left behind however the processes end. A lane that dies, fails or is
silent ends lane 0 with `LaneLost`; without lane 0 the others end.
"""

import contextlib
import errno
import gc
import itertools
import math
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess
from typing import TypeVar

import torch
from torch import Tensor

from param_servers.errors import ConfigError, LaneLost, RunStopped
from param_servers.errors import told as line_of
from param_servers.exchange import GradientExchange, Pull, Receipt, whole
from param_servers.lane_links import LaneKind, LaneLink, coded, of_each
from param_servers.libc import LIBC, PR_SET_PDEATHSIG, nameless_file
from param_servers.timeouts import CLOSE_S, Timeouts

T = TypeVar("T")
_MOST_NUMBERS = 4096
_BUFFERS = 2
"""Of the parameters: those of a pull stay what they are until a lane pulls again, which may be later than lane 0."""


class Lane:
    """This process's place among the lanes of its worker.

    Args:
        index, count: which of how many.
        links: of lane 0 to each of the others, by index; of another lane to lane 0.
    """

    def __init__(self, index: int, count: int, links: Sequence[LaneLink]) -> None:
        self.index, self.count, self._links = index, count, links

    def exchange(self, connect: Callable[[], GradientExchange], numel: int) -> GradientExchange:
        """This lane's end of the worker's exchange. `connect` is called in lane 0 alone; numel: parameters P.

        Raises:
            ConfigError: the memory that the lanes share cannot be had; the line says how much is needed.
            LaneLost: another lane ended.
        """
        if self.count == 1:
            return connect()
        if self.index:
            return _OtherLane(self.index, self._links[0], _Memory.of_lane_0(self._links[0], self.count, numel))
        memory = _Memory.make(self._links, self.count, numel)
        return _FirstLane(connect(), self._links, memory)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Element by element the sum of all lanes' numbers, which every lane must give at the same place of its loop.

        Raises:
            ConfigError: they are more than 4,096.
            LaneLost: another lane ended, or gave none in time.
        """
        if len(numbers) > _MOST_NUMBERS:
            raise ConfigError(f"lanes add up at most {_MOST_NUMBERS:,} numbers at once, got {len(numbers):,}")
        code = struct.Struct(f"<{len(numbers)}d")
        if self.index:
            self._links[0].send(LaneKind.NUMBERS, text=code.pack(*numbers))
            return list(code.unpack(self._links[0].receive(LaneKind.NUMBERS).text))
        rows = [numbers, *(code.unpack(message.text) for message in of_each(self._links, LaneKind.NUMBERS))]
        sums = [sum(column) for column in zip(*rows, strict=True)]
        for link in self._links:
            link.send(LaneKind.NUMBERS, text=code.pack(*sums))
        return sums


ALONE = Lane(0, 1, ())
"""The one process of a worker without lanes."""


def run_in_lanes(
    count: int,
    main: Callable[[Lane], str],
    *,
    timeouts: Timeouts,
    cores: Sequence[int] = (),
    told: tuple[type[Exception], ...] = (),
) -> str:
    """Call `main` in `count` processes, this one and `count` − 1 forked ones; what it returned here.

    Everything imported before is shared. Forks have no other thread of this process: call it before torch computes.

    Args:
        cores: lane i is bound to cores[i]; () binds none.
        told: errors whose line says all; of others a lane prints the traceback, too.

    Raises:
        ConfigError: no lane, or fewer cores than lanes.
        LaneLost: another lane died, failed, or was silent for too long; else whatever `main` raises.
    """
    if count < 1 or (cores and len(cores) < count):
        raise ConfigError(f"a worker has one lane or more, each with a core of its own: {count}, cores {list(cores)}")
    if count == 1:
        return main(ALONE)
    threads, affinity, frozen = torch.get_num_threads(), os.sched_getaffinity(0), gc.get_freeze_count()
    context, parent, on_sigterm = multiprocessing.get_context("fork"), os.getpid(), signal.getsignal(signal.SIGTERM)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(1, count)]

    def lane(index: int) -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return
        if on_sigterm is not None:  # what a worker's forks undo, as an environment's are to
            signal.signal(signal.SIGTERM, on_sigterm)
        for place, (theirs, ours) in enumerate(pairs, 1):
            theirs.close()
            if place != index:
                ours.close()
        # lane 0 has the patience of its exchange, and then that of its own lanes
        link = LaneLink("lane 0", pairs[index - 1][1], timeouts.lane_s)
        try:
            _settle(index, cores)
            main(Lane(index, count, (link,)))
        except LaneLost:  # lane 0 is gone, or says why it goes
            return
        except Exception as error:
            if not isinstance(error, told):
                traceback.print_exc()
            with contextlib.suppress(OSError, LaneLost):  # lane 0 is gone too
                link.send(LaneKind.FAILED, text=coded(line_of(error)))

    gc.collect()
    gc.freeze()  # what is there now stays shared: a collection would write to it
    # no daemons: those may have no processes of their own, and environments start some
    processes = [
        context.Process(target=lane, args=(index,), name=f"lane-{index}", daemon=False) for index in range(1, count)
    ]
    try:
        for process in processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()
        links = [
            LaneLink(f"lane {i}", pair[0], timeouts.step_s, process)
            for i, (pair, process) in enumerate(zip(pairs, processes, strict=True), 1)
        ]
        _settle(0, cores)
        return main(Lane(0, count, links))
    finally:
        for ours, _ in pairs:
            ours.close()
        _end(processes)
        torch.set_num_threads(threads)
        if cores:
            os.sched_setaffinity(0, affinity)
        if not frozen:
            gc.unfreeze()


def _settle(index: int, cores: Sequence[int]) -> None:
    torch.set_num_threads(1)
    if cores:
        os.sched_setaffinity(0, {cores[index]})


def _end(processes: Sequence[ForkProcess]) -> None:
    """They have heard that it is over; who does not end is ended."""
    give_up_s = time.monotonic() + CLOSE_S
    for process in processes:
        if process.pid is not None and process.is_alive():  # a fork of its may hold open what `join` waits for
            process.join(max(0.0, give_up_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(CLOSE_S)


class _Memory:
    """What the lanes of a worker share: parameters [2, P], a row for each lane's gradient [L, P], their mean [P]."""

    def __init__(self, descriptor: int, count: int, numel: int) -> None:
        self.mapped = mmap.mmap(descriptor, self.bytes_needed(count, numel))
        os.close(descriptor)
        floats = torch.frombuffer(self.mapped, dtype=torch.float32).view(_BUFFERS + count + 1, numel)
        self.parameters, self.rows, self.mean = floats[:_BUFFERS], floats[_BUFFERS:-1], floats[-1]
        edges = [numel * lane // count for lane in range(count + 1)]
        self._parts = list(itertools.pairwise(edges))

    @staticmethod
    def bytes_needed(count: int, numel: int) -> int:
        return 4 * numel * (_BUFFERS + count + 1)

    @classmethod
    def make(cls, links: Sequence[LaneLink], count: int, numel: int) -> "_Memory":
        """Lane 0's, of which the others are told."""
        size = cls.bytes_needed(count, numel)
        descriptor = nameless_file("lanes")
        try:
            os.posix_fallocate(descriptor, 0, size)  # now, not by a SIGBUS in the middle of a step
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise ConfigError(
                f"{count} lanes share {_BUFFERS} + {count} + 1 times {4 * numel / 1e6:.1f} MB = {size / 1e6:.0f} MB, "
                f"which this machine does not give ({error.strerror}): take fewer lanes"
            ) from None
        for link in links:
            link.send(LaneKind.MEMORY, first=numel, fd=descriptor)
        return cls(descriptor, count, numel)

    @classmethod
    def of_lane_0(cls, link: LaneLink, count: int, numel: int) -> "_Memory":
        message = link.receive(LaneKind.MEMORY)
        if message.first != numel:
            raise ConfigError(f"lane 0 has {message.first} parameters, this lane {numel}")
        return cls(message.descriptors[0], count, numel)

    def write(self, lane: int, gradient: Tensor) -> None:
        """This lane's gradient [P]; one of another length makes a mean that every exchange rejects."""
        self.rows[lane] = gradient.detach() if gradient.shape == self.mean.shape else math.nan

    def add_up(self, lane: int) -> None:
        """This lane's part of the mean, whose rows are added in the lanes' order."""
        begin, end = self._parts[lane]
        part = self.mean[begin:end]
        torch.add(self.rows[0, begin:end], self.rows[1, begin:end], out=part)
        for row in self.rows[2:]:
            part += row[begin:end]
        part /= len(self.rows)


class _FirstLane:
    """The `GradientExchange` of lane 0, around the worker's own."""

    def __init__(self, inner: GradientExchange, links: Sequence[LaneLink], memory: _Memory) -> None:
        self._inner, self._links, self._memory = inner, links, memory
        self._buffer = 0

    def pull(self) -> Pull:
        pulled = self._or_tell(self._inner.pull)
        self._buffer = (self._buffer + 1) % _BUFFERS
        self._memory.parameters[self._buffer] = pulled.parameters
        self._tell(LaneKind.PULLED, bool(self._buffer), pulled.step, pulled.data_points)
        return pulled

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`; it is the mean over all lanes that travels, and the sum of their data points."""
        memory, data_points = self._memory, whole(data_points)
        memory.write(0, gradient)
        data_points += sum(message.first for message in of_each(self._links, LaneKind.WRITTEN))
        self._tell(LaneKind.SUM)
        memory.add_up(0)
        of_each(self._links, LaneKind.SUMMED)
        receipt = self._or_tell(lambda: self._inner.push(memory.mean, step, data_points))
        self._tell(LaneKind.ANSWER, receipt.accepted, receipt.step, text=receipt.reason.encode())
        return receipt

    def close(self) -> None:
        self._inner.close()

    def _tell(self, kind: LaneKind, flag: bool = False, first: int = 0, second: int = 0, text: bytes = b"") -> None:
        for link in self._links:
            link.send(kind, flag, first, second, text)

    def _or_tell(self, ask: Callable[[], T]) -> T:
        """What the worker's exchange answers. When the run is over the other lanes hear of it."""
        try:
            return ask()
        except RunStopped as stopped:
            for link in self._links:
                with contextlib.suppress(LaneLost):  # it needs to hear nothing
                    link.send(LaneKind.STOPPED, text=coded(stopped.reason))
            raise


class _OtherLane:
    """The `GradientExchange` of every other lane."""

    def __init__(self, lane: int, link: LaneLink, memory: _Memory) -> None:
        self._lane, self._link, self._memory = lane, link, memory

    def pull(self) -> Pull:
        message = self._link.receive(LaneKind.PULLED)
        return Pull(self._memory.parameters[int(message.flag)], message.first, message.second)

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        """See `GradientExchange.push`. `step` is lane 0's."""
        data_points = whole(data_points)
        self._memory.write(self._lane, gradient)
        self._link.send(LaneKind.WRITTEN, first=data_points)
        self._link.receive(LaneKind.SUM)
        self._memory.add_up(self._lane)
        self._link.send(LaneKind.SUMMED)
        answer = self._link.receive(LaneKind.ANSWER)
        return Receipt(answer.flag, answer.first, answer.text.decode())

    def close(self) -> None:
        """See `GradientExchange.close`. The run goes on without it only if it is over."""
