"""A stand-in for a role's process, for tests of what starts, replaces and stops processes.

Its words: RUN_DIR NAME BEHAVIOUR INCARNATION. When ready it says so and then writes its pid to
RUN_DIR/NAME.INCARNATION.pid: who has read that may kill it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.local.child import exit_with_parent

GIVE_UP_S = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Until what this stand-in waits for is so."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while not condition():
        if time.monotonic() > give_up_s:
            sys.exit("what this stand-in waits for did not happen")
        time.sleep(0.01)


def main(words: Sequence[str]) -> int:
    run_dir, (name, behaviour, incarnation) = Path(words[0]), words[1:]
    if behaviour in ("obedient", "deaf", "mute", "orphan", "parent"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "orphan":
        exit_with_parent(grace_s=0.2)
    if behaviour == "parent":
        child = subprocess.Popen(["sleep", "60"])
        (run_dir / f"{name}.grandchild").write_text(str(child.pid))
    asked: list[int] = []
    if behaviour in ("saves-at-sigterm", "saves-for-ever"):
        signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    print(f"{name} ready as incarnation {incarnation}", flush=True)
    temporary = run_dir / f".{name}.{incarnation}"
    temporary.write_text(str(os.getpid()))
    temporary.rename(run_dir / f"{name}.{incarnation}.pid")
    if behaviour == "fails":
        raise RuntimeError(f"{name} has a fault of its own")
    if behaviour == "fails-and-chats":
        print(f"{name.replace('-', ' ')}: ValueError: late trouble", "a library says farewell", sep="\n")
        return 1
    if behaviour == "bad-input":
        print("no such game", file=sys.stderr)
        return 2
    if behaviour == "taken-over":
        return 4
    if behaviour == "bad-input-later" and incarnation != "0":
        print("config.json cannot be read", file=sys.stderr)
        return 2
    if behaviour == "saves-for-ever":
        time.sleep(GIVE_UP_S)
    if behaviour == "saves-at-the-end":
        wait_until((run_dir / "stop.json").exists)
        (run_dir / f"{name}.saved").touch()
        return 0
    if behaviour == "ends":
        return 0
    if behaviour == "saves-at-sigterm":
        wait_until(lambda: bool(asked))
        (run_dir / f"{name}.saved").touch()
        return 0
    if behaviour in ("deaf", "orphan", "stubborn"):  # deaf: to everything; stubborn: only SIGTERM moves it
        time.sleep(GIVE_UP_S)
    wait_until((run_dir / "stop.json").exists)
    if behaviour == "breaks-at-the-end":
        return 1
    if behaviour == "ends-broken":
        other = (run_dir / "worker-1.0.pid").read_text()
        wait_until(lambda: not Path(f"/proc/{other}").exists())
        print("all steps since 40 are lost")
        return 3
    print(f"{name} ended as asked")
    return 0
