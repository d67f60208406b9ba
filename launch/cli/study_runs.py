"""The runs of a study on this machine, one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dba3c.errors import UserError
from launch.local.processes import STOP_SIGNALS, before_exec, shell_code, taking_signals

if TYPE_CHECKING:
    from dba3c.studies.study import Run


def state_of(run: Run) -> str:
    """See `Run.state`; what cannot be read says why."""
    try:
        return run.state()
    except UserError as error:
        return f"unreadable ({error})"


def train(command: Sequence[str]) -> int:
    """Run it to its end. Stop signals are passed on to it; then the result is 128 + the first one's number.

    Its session is its own, so that a terminal's Ctrl-C reaches it once, and it does not outlive this process.
    """
    stopped_by: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(signum: int) -> None:
        stopped_by.append(signum)
        for child in children:
            child.send_signal(signum)

    with taking_signals(pass_on):
        child = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=before_exec(os.getpid(), signal.SIGTERM),
            stdin=subprocess.DEVNULL,
        )
        children.append(child)
        for signum in stopped_by[:1]:  # it came while the child was being made
            child.send_signal(signum)
        code = child.wait()
    return 128 + stopped_by[0] if stopped_by else shell_code(code)


def run_all(runs: Sequence[Run], train: Callable[[Sequence[str]], int] = train) -> int:
    """The runs that are not finished, one after the other; one that fails costs a line. Exit 1 when any did."""
    failed, began_s, new = [], time.monotonic(), 0
    for number, run in enumerate(runs, start=1):
        state = state_of(run)
        if state in ("finished", "live") or state.startswith("unreadable"):
            print(f"[{number}/{len(runs)}] {run.name}: {state}, left alone", flush=True)
            failed += [run.name] if state.startswith("unreadable") else []
            continue
        left = (
            f", about {(time.monotonic() - began_s) / new * (len(runs) - number + 1) / 60:.0f} min left" if new else ""
        )
        print(f"[{number}/{len(runs)}] {run.name}: {'starts' if state == 'missing' else 'resumed'}{left}", flush=True)
        code = train(train_command(run, resume=state != "missing"))
        new += 1
        if code - 128 in STOP_SIGNALS:
            print("interrupted: the same command goes on from here", flush=True)
            return code
        if code:
            print(f"[{number}/{len(runs)}] {run.name}: failed with exit {code}, going on with the next", flush=True)
            failed.append(run.name)
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def train_command(run: Run, resume: bool) -> list[str]:
    """What trains one run of a study on this machine."""
    command = [sys.executable, "-m", "launch", "train", *run.point.words, "--seed", str(run.seed)]
    return [*command, "--run-dir", str(run.folder), *(["--resume"] if resume else [])]
