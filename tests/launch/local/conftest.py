from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.local.supervised import LONG_S, Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for pid in lab.supervisor.pids().values():
        os.kill(pid, signal.SIGKILL)
    if lab.thread.ident is not None:
        lab.thread.join(LONG_S)
