"""Runs the role processes of one machine: replaces what may be replaced, passes on requests to stop, leaves no orphan.

    RUNNING ──a process that decides ends with 0──► ENDING ─────────┐
       ├─────first Ctrl-C, SIGTERM, or a failure──► STOPPING ───────┤ too slow, or second signal
       │                                                            ▼
       └──(third signal: KILLING at once)                      TERMINATING ──► KILLING

STOPPING asks through the run folder, so the run ends at a step boundary with a checkpoint; where the folder cannot be
written, it asks its own processes by SIGTERM. Each phase but RUNNING is bounded. Exit code: 0 when the run ended as
asked (Ctrl-C included), the failing process's own when it failed (128 + n for signal n), 128 + n when signal n had to
force the end.

What is told is told last: no terminal, log or disk decides how a run ends (`launch.output`). A lost terminal is a
SIGHUP, which ends the run with a checkpoint as SIGTERM does; under nohup, or when only the reader of a pipe has left,
the run goes on and says nothing. After an error of the supervisor itself the run is asked to end, too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from launch.local.child import Child, describe_exit, taking_signals
from launch.local.failures import Ending, Failed
from launch.local.processes import (
    FINAL_EXITS,
    RESTART_WINDOW_S,
    RUN_ENDED_BROKEN_EXIT,
    TRAINING_ROLES,
    USER_ERROR_EXIT,
    RoleProcess,
)
from param_servers.patience import Restarts

RUNNING, ENDING, STOPPING, TERMINATING, KILLING = range(5)
SAME_REQUEST_S = 1.0
"""Launchers repeat themselves: scancel tells srun and the tasks, which srun tells again. Only Ctrl-C counts at once."""


class Phases:
    """The phase, its deadline, and the last request. Every phase but RUNNING has a deadline."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = RUNNING
        self.last_signal = signal.SIGTERM
        self._clock = clock
        self._deadline_s: float | None = None
        self._signalled_s = float("-inf")

    def enter(self, phase: int, timeout_s: float) -> None:
        """Go over to a phase that may last ``timeout_s``."""
        self.now = phase
        self._deadline_s = self._clock() + timeout_s

    def remaining_s(self) -> float | None:
        """Time left in this phase; None without a bound."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._clock())

    def is_repeated(self, signum: signal.Signals) -> bool:
        """Note a signal; whether it only repeats the one before."""
        at_once = self._clock() - self._signalled_s < SAME_REQUEST_S
        repeated = at_once and not signum == self.last_signal == signal.SIGINT
        self._signalled_s = self._clock()
        if not repeated:
            self.last_signal = signum
        return repeated


@dataclass
class _Running:
    spec: RoleProcess
    child: Child
    incarnation: int


def say_to_stderr(line: str) -> None:
    """The default `say`."""
    print(line, file=sys.stderr, flush=True)


class Supervisor:
    """Starts processes and stays until all of them are gone.

    Args:
        run_dir: logs go to ``logs/ROLE-RANK.log`` in it.
        request_stop: asks the run to end at a step boundary (`RunFolder.request_stop`).
        on_event: called with (event, message) for the run's metrics: started, killed, restarted, left, stopping.
        whole_run: these are all the processes of the run; False where other ranks have others, which go on without
            these if they may.
        stop_timeout_s: bound of a clean stop; a checkpoint has to be written in it.
        refused_timeout_s: bound of a clean stop when a role refused its input before the run was as old as
            `stop_timeout_s`: there is nothing yet to save.
    """

    def __init__(
        self,
        run_dir: Path,
        processes: Sequence[RoleProcess],
        request_stop: Callable[[str], Any],
        *,
        on_event: Callable[[str, str], Any] = lambda event, message: None,
        say: Callable[[str], Any] = say_to_stderr,
        environ: Mapping[str, str] | None = None,
        whole_run: bool = True,
        stop_timeout_s: float = 60.0,
        terminate_timeout_s: float = 5.0,
        refused_timeout_s: float = 3.0,
    ) -> None:
        self.run_dir = run_dir
        self.processes = list(processes)
        self.request_stop = request_stop
        self.on_event = on_event
        self.say = say
        self.environ = dict(os.environ if environ is None else environ)
        self.whole_run = whole_run
        self.stop_timeout_s = stop_timeout_s
        self.terminate_timeout_s = terminate_timeout_s
        self.refused_timeout_s = refused_timeout_s
        self._started_s = self._ended_s = time.monotonic()
        self._phases = Phases()
        self._live: dict[str, _Running] = {}
        self._restarts = {spec.name: Restarts(spec.max_restarts, RESTART_WINDOW_S) for spec in processes}
        self._happened: queue.SimpleQueue[tuple[str, Any, int]] = queue.SimpleQueue()
        self._ending = Ending(run_dir, self.environ.get("SLURMD_NODENAME"))
        self._nothing_to_save = False  # refused before it began, or over elsewhere: who is late need not be asked again

    def run(self) -> int:
        """Blocks until every process is gone; returns the exit code. Call it in the main thread: it takes signals."""
        with taking_signals(lambda signum: self._happened.put(("signal", "", signum))):
            try:
                for spec in self.processes:
                    self._start(spec, incarnation=0)
                while self._live:
                    self._handle_next()
            finally:
                self._end_rest()
        return self._ending.exit_code(
            self.say,
            stopped=self._phases.now == STOPPING,
            whole_run=self.whole_run,
            last_signal=int(self._phases.last_signal),
        )

    @property
    def cause(self) -> str:
        """Why the run failed, in one line; "" when it did not."""
        return self._ending.cause

    def pids(self) -> dict[str, int]:
        """Name → pid of the processes alive now."""
        return {name: running.child.pid for name, running in list(self._live.items())}

    def run_has_ended(self, well: bool) -> None:
        """From any thread: the run is over, as its chief knows; who has not heard of it has `drain_timeout_s` left."""
        self._happened.put(("ended", "", int(well)))

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, spec: RoleProcess, incarnation: int) -> None:
        name = spec.name
        child = Child(
            command=spec.command(incarnation),
            log=self.run_dir / "logs" / f"{spec.role}-{spec.rank}.log",
            environ={**self.environ, **spec.environ},
            on_exit=lambda code: self._happened.put(("exit", name, code)),
            # SIGTERM asks the whole run to end. One of many ranks that loses its launcher should only cost itself.
            orphan_signal=signal.SIGTERM if self.whole_run or spec.keeps_the_run else signal.SIGKILL,
        )
        self._live[name] = _Running(spec, child, incarnation)

    # -- what happens --------------------------------------------------------------------------------------------

    def _handle_next(self) -> None:
        try:
            kind, name, number = self._happened.get(timeout=self._phases.remaining_s())
        except queue.Empty:
            self._too_slow()
            return
        if kind == "signal":
            self._signalled(signal.Signals(number))
        elif kind == "ended":
            self._ended_elsewhere(bool(number))
        else:
            self._exited(self._live.pop(name), number)

    def _exited(self, gone: _Running, code: int) -> None:
        spec = gone.spec
        if code == 0:
            self._ending.ended_well |= spec.decides
            if (spec.decides and self._phases.now == RUNNING) or self._phases.now == ENDING:
                self._drain()
            return
        if self._phases.now >= TERMINATING:
            return
        failed = Failed(spec, gone.child, code)
        # What this process's first life could do was no bad input: a later one that is refused it has met a fault.
        final = code in FINAL_EXITS and not (code == USER_ERROR_EXIT and gone.incarnation)
        lost = f"{spec.name}: {describe_exit(code)}" + (f" ({failed.cause})" if code > 0 else "")
        if self._phases.now == RUNNING and not final and self._restarts[spec.name].take():
            self._start(spec, gone.incarnation + 1)
            self._tell("restarted", f"{lost}; starting it again ({self._restarts[spec.name]})")
        elif self._phases.now == RUNNING and not self._may_go_on_without(spec, refused=final):
            self._fail(failed, refused=final and code == USER_ERROR_EXIT)
        elif self._phases.now == RUNNING:
            if not self.whole_run:  # this rank has failed, the run has not: it learns of it through its own protocol
                self._ending.lose(failed)
            self._tell("left", f"{lost}; the run goes on without it")
        else:
            said_so = code == RUN_ENDED_BROKEN_EXIT and spec.decides
            if (said_so or (spec.essential and not self._ending.ended_well)) and not self._ending.failed:
                self._ending.fail(failed)
            elif spec.decides:
                self._ending.lose(failed)  # unless another one ends well
            self._tell("killed", f"{lost} while the run was ending")

    def _may_go_on_without(self, spec: RoleProcess, refused: bool) -> bool:
        """Whether the run can: it is not needed, its input was not refused, and others are left to train and to end."""
        left = [running.spec for running in self._live.values()]
        decided = any(other.decides for other in left)
        trained = spec.role not in TRAINING_ROLES or any(other.role == spec.role for other in left)
        others = not self.whole_run or (decided and trained)
        return not spec.essential and others and not (refused and spec.takes_part)

    def _fail(self, failed: Failed, refused: bool) -> None:
        self._ending.fail(failed)
        spec, _, code = failed
        if refused and time.monotonic() - self._started_s < self.stop_timeout_s:
            self._nothing_to_save = True
            self._stop(failed.cause)
        else:
            self._stop(f"{spec.name} failed ({describe_exit(code)})")

    def _stop(self, reason: str) -> None:
        self._ask_to_stop(reason)
        self._phases.enter(STOPPING, self.refused_timeout_s if self._nothing_to_save else self.stop_timeout_s)
        self._tell("stopping", f"{reason}; ending the run" + ("" if self._nothing_to_save else " with a checkpoint"))

    def _ask_to_stop(self, reason: str) -> None:
        try:
            self.request_stop(reason)
        except (UserError, OSError) as error:
            for running in self._live.values():
                running.child.ask_to_end()
            self.say(f"{error}; asked the processes of this machine alone to end")

    def _signalled(self, signum: signal.Signals) -> None:
        if self._phases.is_repeated(signum):
            return
        if self._phases.now == RUNNING:
            self._stop(signum.name)
            if signum == signal.SIGINT:
                self.say("once more to end without a checkpoint")
        elif self._phases.now in (ENDING, STOPPING):
            self._terminate(signum.name)
        else:
            self._kill(signum.name)

    def _ended_elsewhere(self, well: bool) -> None:
        self._ending.ended_well |= well
        self._nothing_to_save = not well
        if self._phases.now == RUNNING and well:
            self._drain()
        elif self._phases.now == RUNNING:
            self._phases.enter(ENDING, self.refused_timeout_s)

    def _too_slow(self) -> None:
        late = ", ".join(self._live)
        if self._phases.now in (ENDING, STOPPING) and not self._nothing_to_save:
            self._terminate(f"{late} did not end in time")
        elif self._phases.now < KILLING:
            self._kill(f"{late} did not end in time")
        else:
            self.say(f"{late} cannot be killed; leaving")
            self._live.clear()

    def _terminate(self, why: str) -> None:
        self._force(TERMINATING, signal.SIGTERM)
        self._tell("terminating", f"{why}: terminating {', '.join(self._live)}")

    def _kill(self, why: str) -> None:
        self._force(KILLING, signal.SIGKILL)
        self._tell("killing", f"{why}: killing {', '.join(self._live)}")

    def _force(self, phase: int, signum: signal.Signals) -> None:
        self._ending.forced = True
        for running in self._live.values():
            running.child.signal(signum)
        self._phases.enter(phase, self.terminate_timeout_s)

    def _drain(self) -> None:
        """The run has ended: wait for those that are left, as long as the most patient of them may take."""
        if self._phases.now == RUNNING:
            self._ended_s = time.monotonic()
        timeout_s = max((running.spec.drain_timeout_s for running in self._live.values()), default=0.0)
        self._phases.enter(ENDING, max(0.0, self._ended_s + timeout_s - time.monotonic()))

    def _tell(self, event: str, message: str) -> None:
        """After it was done: to tell of it can take long, or fail."""
        self.say(message)
        self.on_event(event, message)

    # -- the end -------------------------------------------------------------------------------------------------

    def _end_rest(self) -> None:
        """After an error of the supervisor itself: a checkpoint where one can be had, and nothing stays behind."""
        if not self._live:
            return
        with contextlib.suppress(Exception):  # the error that led here is the one to be told
            self._ask_to_stop("the supervisor failed")
        self._wait_for_rest(self.stop_timeout_s)
        for running in self._live.values():
            running.child.signal(signal.SIGKILL)
        self._wait_for_rest(self.terminate_timeout_s)

    def _wait_for_rest(self, timeout_s: float) -> None:
        """Until all are gone, or a signal says that it takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while self._live:
            try:
                kind, name, _ = self._happened.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                return
            if kind == "signal":
                return
            if kind == "exit":
                self._live.pop(name, None)
