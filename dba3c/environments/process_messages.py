"""What a worker and an environment's own process say to each other: a fixed header, then raw bytes; nothing is pickled.

worker → process   CONFIG (JSON), then RESET (seed, −1 for none) and STEP (the action's bytes)
process → worker   SPACES (JSON), then STEPPED (numbers and the observation's bytes), or FAILED (a line of text)
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

CONFIG, RESET, STEP, SPACES, STEPPED, FAILED = range(1, 7)
HEADER = struct.Struct("<BI")  # kind, bytes that follow
SEED = struct.Struct("<q")
OUTCOME = struct.Struct("<dd??")  # reward, score_reward, terminated, truncated
LARGEST_MESSAGE = 1 << 28


class Message(NamedTuple):
    """One message."""

    kind: int
    payload: bytes


def send(handle: int, kind: int, payload: bytes) -> None:
    """Write one message; raises OSError when the other side is gone."""
    data = memoryview(HEADER.pack(kind, len(payload)) + payload)
    while data:
        data = data[os.write(handle, data) :]


def receive(handle: int, deadline_s: float | None = None, patience_s: float = 0.0) -> Message:
    """Read one message; EOFError when the other side is gone.

    TimeoutError when it has not begun by `deadline_s` (time.monotonic; None: wait for ever), or has then not gone on
    for `patience_s`. Not one deadline for all of it: a pipe holds 64 KiB of an answer, and a sender that was in time
    can write the rest only while it is read, which may be after the deadline (somebody else was waited for).
    """
    kind, length = HEADER.unpack(_read(handle, HEADER.size, deadline_s, patience_s))
    if not CONFIG <= kind <= FAILED or length > LARGEST_MESSAGE:
        raise ValueError(f"a message of kind {kind} and {length} bytes, which nobody sends")
    goes_on_s = None if deadline_s is None else time.monotonic() + patience_s
    return Message(kind, _read(handle, length, goes_on_s, patience_s))


def _read(handle: int, length: int, deadline_s: float | None, patience_s: float) -> bytes:
    received = bytearray()
    while len(received) < length:
        if deadline_s is not None:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            if not select.select([handle], [], [], left_s)[0]:
                raise TimeoutError
        chunk = os.read(handle, length - len(received))
        if not chunk:
            raise EOFError
        received += chunk
        if deadline_s is not None:
            deadline_s = time.monotonic() + patience_s
    return bytes(received)


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """A Box (bounds of an observation are not kept), Discrete or MultiDiscrete as JSON."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "dtype": str(space.dtype), "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"kind": "multi_discrete", "dtype": str(space.dtype), "nvec": nvec, "start": start}
    if not isinstance(space, spaces.Box):
        raise TypeError(f"{space} is not sent")
    bounds = [float(space.low.min()), float(space.high.max())]
    if space.shape and len(space.shape) == 1:
        bounds = [space.low.tolist(), space.high.tolist()]
    return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype), "bounds": bounds}


def described_space(description: dict[str, Any]) -> spaces.Space[Any]:
    """The space that `describe_space` described."""
    dtype = np.dtype(description["dtype"])
    if description["kind"] == "discrete":
        # before 1.2.2 Gymnasium knew int64 alone and took no dtype
        chosen = {} if dtype == np.int64 else {"dtype": dtype.type}
        return spaces.Discrete(description["n"], start=description["start"], **chosen)
    if description["kind"] == "multi_discrete":
        return spaces.MultiDiscrete(description["nvec"], dtype.type, start=description["start"])
    low, high = (np.asarray(bound, dtype=dtype) for bound in description["bounds"])
    shape = tuple(description["shape"])
    return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type)
