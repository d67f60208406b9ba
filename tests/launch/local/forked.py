"""What tests of the fork server have forked."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence

from launch.local.fork_server import RETURNED, ForkServer

_PR_GET_CHILD_SUBREAPER = 37
IMPORTED_BY = os.getpid()


class Costly:
    """To take apart."""

    def __del__(self) -> None:
        os.write(1, b"taken apart\n")


COSTLY = Costly()


def main(words: Sequence[str]) -> int:
    if words[0] == "exit":
        return int(words[1])
    if words[0] == "leave-early":
        os._exit(0)
    if words[0] == "say":
        print(IMPORTED_BY, os.environ["DBA3C_TEST"], *words)
    if words[0] == "leave":
        threading.Timer(0.01, print, ["a thread has ended"]).start()
        atexit.register(print, "said at exit")
        sys.exit(7)
    if words[0] == "wait":
        signal.pause()
    if words[0] == "as-a-launcher":
        with ForkServer([__name__]) as server:
            code = os.waitstatus_to_exitcode(os.waitpid(server.fork(f"{__name__}:main", ["exit", "0"], 1, 15), 0)[1])
        adopts = ctypes.c_int()
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
        return int(code != RETURNED) or adopts.value
    return 0
