"""A piece of work that is always the same, as a control: what it costs more somewhere, the machine costs, not the work.

It is of the service's kind and knows no links and no actors: a message's bytes copied into the next row of some
megabytes, small numpy calls, Python objects.
"""

from __future__ import annotations

import json
import time

import numpy as np

_MESSAGE = np.zeros(16 * 84 * 84, np.uint8)
_ROWS = np.ones((48, len(_MESSAGE)), np.uint8)  # ones: zeros would be no memory yet
_PIECES = 1000
"""Of the measurement alone, about 0.1 s."""


def piece(index: int) -> None:
    """About 100 µs on an idle machine."""
    _ROWS[index % len(_ROWS)] = _MESSAGE
    rewards = np.arange(64, dtype=np.float32)
    joined = np.concatenate([rewards[begin : begin + 16] for begin in range(0, 64, 16)])
    p50, p99 = np.percentile(joined, (50, 99))
    json.loads(json.dumps({"index": index, "p50": float(p50), "p99": float(p99), "rows": list(range(16))}))


def alone_s() -> float:
    """Processor seconds of a piece among many, back to back."""
    for index in range(len(_ROWS)):
        piece(index)
    cpu_s = time.process_time()
    for index in range(_PIECES):
        piece(index)
    return (time.process_time() - cpu_s) / _PIECES


def woken_s(every_s: float, seconds: float) -> float:
    """Processor seconds of a piece when this process wakes up for each, one every so many seconds."""
    pieces, began_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < seconds:
        time.sleep(max(0.0, began_s + pieces * every_s - time.perf_counter()))
        piece(pieces)
        pieces += 1
    return (time.process_time() - cpu_s) / pieces
