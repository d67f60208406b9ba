from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launch.local.fork_server import ForkServer
from tests.launch.local.supervised import LONG_S, STAND_IN, Lab


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    with ForkServer([STAND_IN]) as fork_server:
        yield fork_server


@pytest.fixture
def lab(fork_server: ForkServer, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(fork_server, tmp_path)
    yield lab
    for pid in lab.supervisor.pids().values() if lab.supervisor else ():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if lab.thread.ident is not None:
        lab.thread.join(LONG_S)
