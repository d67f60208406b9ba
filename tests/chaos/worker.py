"""What a campaign puts into its run's workers: CartPole at a walking pace, and a record of all that they push.

A run finds `make_cartpole` by its environment's name, `tests.chaos.worker:make_cartpole`; with the import, every
exchange of that process writes each gradient to a file before it is pushed, and the answer after that:

    RECORDS/life-L.worker-W.incarnation-I.pid-P    records of `RECORD`, each GRAD followed by its gradient [P] float32
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from torch import Tensor

from dba3c.assembly import exchanges
from param_servers.exchange import Pull, Receipt

RECORD = struct.Struct("<4sIqqq")
"""GRAD: CRC-32 of the pulled parameters, sequence, step, data points; DONE: whether accepted, sequence, step, 0."""
FOLDER_VARIABLE, LIFE_VARIABLE = "CHAOS_RECORDS", "CHAOS_LIFE"
STEP_S = 0.004


class Recorded:
    """A `GradientExchange` around another one, whose pushes it numbers as that one does: 1, 2, 3, ..."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner, self._sequence, self._pulled_crc = inner, 0, 0
        self._file = path.open("ab", buffering=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pull(self) -> Pull:
        pull = self._inner.pull()
        self._pulled_crc = zlib.crc32(pull.parameters.numpy())
        return pull

    def push(self, gradient: Tensor, step: int, data_points: int) -> Receipt:
        self._sequence += 1
        head = RECORD.pack(b"GRAD", self._pulled_crc, self._sequence, step, data_points)
        self._file.write(head + gradient.numpy().tobytes())
        receipt = self._inner.push(gradient, step, data_points)
        self._file.write(RECORD.pack(b"DONE", receipt.accepted, self._sequence, receipt.step, 0))
        return receipt


def _record_exchanges() -> None:
    connect = exchanges._servers

    def connect_and_record(process: Any, plan: Any) -> Any:
        folder, life = Path(os.environ[FOLDER_VARIABLE]), os.environ[LIFE_VARIABLE]
        if not (initial := folder / "initial").exists():
            temporary = folder / f"initial-{os.getpid()}"
            temporary.write_bytes(exchanges.initial_parameters(process.config)[1].numpy().tobytes())
            temporary.replace(initial)
        name = f"life-{life}.worker-{process.rank}.incarnation-{process.incarnation}.pid-{os.getpid()}"
        return Recorded(connect(process, plan), folder / name)

    exchanges._servers = connect_and_record


if FOLDER_VARIABLE in os.environ:
    _record_exchanges()


class _Walking(gymnasium.Wrapper):
    """Takes its time, so that a campaign on two cores is about faults and not about load."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        return self.env.step(action)


def make_cartpole() -> gymnasium.Env[np.ndarray, Any]:
    return _Walking(gymnasium.make("CartPole-v1", disable_env_checker=True))
