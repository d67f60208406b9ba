"""What every test shares: one intra-op thread, and no process left behind."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator

import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings

_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVER_GRACE_S = 20.0
# Helpers that multiprocessing keeps for the life of the interpreter; they end with it.
_KEPT_BY_MULTIPROCESSING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup all that tests start would ignore it, as it should
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    settings.register_profile(
        "no_deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )  # no test depends on speed
    settings.load_profile("no_deadline")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the processes that tests start
    # A grandchild whose parent died becomes our child, not init's, so that the check below sees it.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants() -> dict[tuple[int, float], psutil.Process]:
    """Live descendants of this process; a zombie is dead and only waits to be collected."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(k in command for k in _KEPT_BY_MULTIPROCESSING):
                found[process.pid, process.create_time()] = process
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    before = _descendants()
    yield
    left = {key: process for key, process in _descendants().items() if key not in before}
    if not left:
        return
    _, alive = psutil.wait_procs(list(left.values()), timeout=_LEFTOVER_GRACE_S)
    described = []
    for process in alive:
        try:
            described.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    if described:
        psutil.wait_procs(alive, timeout=_LEFTOVER_GRACE_S)
        pytest.fail("the test left processes behind:\n  " + "\n  ".join(described), pytrace=False)
