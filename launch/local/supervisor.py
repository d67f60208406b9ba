"""Runs the role processes of one machine: replaces what may be replaced, passes on requests to stop, leaves no orphan.

    RUNNING ──a process that decides ends with 0──► ENDING ─────────┐
       ├─────first Ctrl-C, SIGTERM, or a failure──► STOPPING ───────┤ too slow, or a further Ctrl-C
       │                                                            ▼
       └──(third Ctrl-C: KILLING at once)                      TERMINATING ──► KILLING

STOPPING asks through the run folder, so the run ends at a step boundary with a checkpoint; where the folder cannot be
written, it asks its own processes by SIGTERM. Each phase but RUNNING is bounded. Exit code: 0 when the run ended as
asked (Ctrl-C included), the failing process's own when it failed (128 + n for signal n), 128 + n when signal n had to
force the end, RUN_ENDED_BROKEN_EXIT when it had to be forced where no signal had come.

What is told is told last: no terminal, log or disk decides how a run ends (`launch.output`). A lost terminal is a
SIGHUP, which ends the run with a checkpoint as SIGTERM does; under nohup, or when only the reader of a pipe has left,
the run goes on and says nothing. After an error of the supervisor itself the run is asked to end, too.
"""

import errno
import math
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dba3c.errors import RUN_BROKEN_EXIT, RUN_ENDED_BROKEN_EXIT, RUN_TAKEN_OVER_EXIT, USER_ERROR_EXIT, UserError
from dba3c.runs.ending import note_failure
from dba3c.runs.folder import RunFolder
from launch.local.child import Child, describe_exit, shell_code
from launch.local.fork_server import ForkServer
from launch.local.role_process import RESTART_WINDOW_S, RoleProcess
from launch.output import say_to_stderr
from param_servers.timeouts import NAP_S, Restarts, clock_of_a_loop

RUNNING, ENDING, STOPPING, TERMINATING, KILLING = range(5)
FINAL_EXITS = (USER_ERROR_EXIT, RUN_ENDED_BROKEN_EXIT, RUN_TAKEN_OVER_EXIT)


@dataclass
class _Process:
    """One life of a process, and how it ended otherwise than with 0."""

    spec: RoleProcess
    child: Child
    incarnation: int
    code: int = 0

    @property
    def cause(self) -> str:
        """One line: the last that it said of itself (what a library says at exit comes later), or of anything, or the
        signal that killed it."""
        name = self.spec.name
        if self.code < 0:
            return f"{name}: {describe_exit(self.code)}"
        said = self.child.tail().splitlines() or [f"{describe_exit(self.code)}, no word of it in its log"]
        own = (f"{name}: ", f"{name} cannot")
        return next((line for line in reversed(said) if line.startswith(own)), f"{name}: {said[-1]}")


class Supervisor:
    """Starts processes and stays until all of them are gone.

    Args:
        fork_server: what the processes are forked from.
        run_dir: logs go to ``logs/ROLE-RANK.log`` in it.
        request_stop: asks the run to end at a step boundary, as failed or not (`RunFolder.request_stop`).
        on_event: called with (event, message) for the run's metrics: restarted, not_restarted, left, killed, stopping,
            terminating, killing.
        whole_run: these are all the processes of the run; False where other ranks have others, which go on without
            these if they may.
        stays: also when the run goes on without its last process, until that has ended (`run_has_ended`): many a
            launcher ends all ranks when one ends otherwise than well.
        joins_late: another machine's processes have played this part of the run, which goes on, also where these are
            asked to end.
        stop_timeout_s: bound of a clean stop; a checkpoint has to be written in it.
        refused_timeout_s: bound of a clean stop when a role refused its input, or the run failed elsewhere, before it
            was as old as `stop_timeout_s`: there is nothing yet to save; and of a run that failed elsewhere later,
            where nobody here `saves_alone`.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        run_dir: Path,
        processes: Sequence[RoleProcess],
        request_stop: Callable[..., Any],
        *,
        on_event: Callable[[str, str], Any] = lambda event, message: None,
        say: Callable[[str], Any] = say_to_stderr,
        whole_run: bool = True,
        stays: bool = False,
        joins_late: bool = False,
        stop_timeout_s: float = 60.0,
        terminate_timeout_s: float = 5.0,
        refused_timeout_s: float = 3.0,
    ) -> None:
        self.fork_server, self.run_dir, self.processes = fork_server, run_dir, list(processes)
        self.request_stop, self.on_event, self.say = request_stop, on_event, say
        self.whole_run, self.stays, self.joins_late = whole_run, stays, joins_late
        self.stop_timeout_s, self.terminate_timeout_s = stop_timeout_s, terminate_timeout_s
        self.refused_timeout_s = refused_timeout_s
        self._started_s = time.monotonic()
        self._now_s = clock_of_a_loop().now_s
        self._ended_s = float("-inf")
        """On that clock; for ever ago where it has not ended well."""
        self._phase = RUNNING
        self._deadline_s: float | None = None
        """Of the phase; every one but RUNNING has one."""
        self._last_signal: signal.Signals | None = None
        self._live: dict[str, _Process] = {}
        self._restarts = {spec.name: Restarts(spec.max_restarts, RESTART_WINDOW_S) for spec in processes}
        self._happened: queue.SimpleQueue[tuple[str, Any, int]] = queue.SimpleQueue()
        self._failure: _Process | None = None
        """What ended the run."""
        self._lost: _Process | None = None
        """The run goes on without it; this rank does not."""
        self._ended_well = False
        """A process that decides ended with 0."""
        self._unsaved = ""
        """Who was terminated when it had yet to write the last checkpoint."""
        self._not_started = ""
        """Why a process could not be started at all."""
        self._forced = False
        """Somebody had to be terminated."""
        self._nothing_to_save = False  # refused before it began, or over elsewhere: who is late need not be asked again

    def run(self) -> int:
        """Blocks until every process is gone; returns the exit code. Call it within `taking_signals(take_signal)`."""
        try:
            for spec in self.processes:
                self._start_first(spec)
            while self._live or (self.stays and self._lost and self._phase == RUNNING):
                self._handle_next()
        finally:
            if self._live:
                # An error of the supervisor itself, which is what is told: a checkpoint where one can be.
                self.say = lambda line: None
                self.on_event = lambda event, message: None
                self._stop("the supervisor failed", failed=True)
                while self._live:
                    self._handle_next()
        return self._exit_code()

    def _exit_code(self) -> int:
        """Says what failed, with the end of its log."""
        if failed := self._decisive:
            how = f"failed ({describe_exit(failed.code)}); the end of its log {failed.child.log}:"
            self.say(f"dba3c: {failed.spec.name} {how}")
            self.say(failed.child.tail())
            return shell_code(failed.code)
        if self._ended_well and not self._unsaved:  # whoever had to be terminated after that was only slow to leave
            return 0
        if self._forced:
            return 128 + self._last_signal if self._last_signal else RUN_ENDED_BROKEN_EXIT
        return 0 if self._phase == STOPPING or not self.whole_run else 1

    @property
    def _decisive(self) -> _Process | None:
        return self._failure or (None if self._ended_well else self._lost)

    @property
    def cause(self) -> str:
        """Why the run failed, in one line; "" when it did not."""
        return self._decisive.cause if self._decisive is not None else self._unsaved or self._not_started

    def pids(self) -> dict[str, int]:
        """Name → pid of the processes alive now."""
        return {name: running.child.pid for name, running in list(self._live.items())}

    def take_signal(self, signum: int) -> None:
        """For `taking_signals`: it is obeyed once `run` has begun, and has no effect once that has ended."""
        self._happened.put(("signal", "", signum))

    def run_has_ended(self, well: bool) -> None:
        """From any thread: the run is over, as its chief knows; who has not heard of it has `drain_timeout_s` left."""
        self._happened.put(("ended", "", int(well)))

    def _start(self, spec: RoleProcess, incarnation: int) -> None:
        name = spec.name
        child = Child(
            self.fork_server,
            spec.main,
            spec.words(incarnation),
            log=self.run_dir / "logs" / f"{spec.role}-{spec.rank}.log",
            on_exit=lambda code: self._happened.put(("exit", name, code)),
            # SIGTERM asks the whole run to end. One of many ranks that loses its launcher should only cost itself.
            orphan_signal=signal.SIGTERM if self.whole_run or spec.keeps_the_run else signal.SIGKILL,
        )
        self._live[name] = _Process(spec, child, incarnation)

    def _start_first(self, spec: RoleProcess) -> None:
        try:
            self._start(spec, incarnation=0)
        except OSError as error:
            which = f"{spec.name}, process {len(self._live) + 1} of {len(self.processes)},"
            limits = " (ulimit -u, or the control group's pids.max)" if error.errno == errno.EAGAIN else ""
            self._not_started = f"{which} cannot be started: {error.strerror or error}{limits}"
            raise UserError(self._not_started) from error

    def _handle_next(self) -> None:
        left_s = math.inf if self._deadline_s is None else max(0.0, self._deadline_s - self._now_s())
        try:  # never without an end: a signal just before the wait interrupts nothing, and is seen after it
            kind, name, number = self._happened.get(timeout=min(NAP_S, left_s))
        except queue.Empty:
            if left_s == 0.0:
                self._too_slow()
            return
        if kind == "signal":
            self._signalled(signal.Signals(number))
        elif kind == "ended":
            self._ended_elsewhere(bool(number))
        else:
            gone = self._live.pop(name)
            gone.code = number
            self._exited(gone)
            self._let_readers_go()

    def _enter(self, phase: int, timeout_s: float) -> None:
        """Go over to a phase that may last ``timeout_s``."""
        self._phase, self._deadline_s = phase, self._now_s() + timeout_s

    def _exited(self, gone: _Process) -> None:
        spec, code = gone.spec, gone.code
        if code == 0:
            self._ended_well |= spec.decides
            if (spec.decides and self._phase == RUNNING) or self._phase == ENDING:
                self._drain()
            return
        if code == RUN_TAKEN_OVER_EXIT and not self.whole_run:  # the run has another one, and is not this rank's to end
            self._lost = gone
            self._tell("left", f"{gone.cause}; its place, or the run's folder, is another's")
            return
        if self._phase >= TERMINATING:
            if self._was_to_save(spec):
                self._unsaved = f"{spec.name} was terminated before it had written the last checkpoint"
            return
        # What this process's first life, or another machine, could do was no bad input: who is refused has met a fault.
        final = code in FINAL_EXITS and not (code == USER_ERROR_EXIT and (gone.incarnation or self.joins_late))
        lost = f"{spec.name}: {describe_exit(code)}" + (f" ({gone.cause})" if code > 0 else "")
        if code == USER_ERROR_EXIT and not final:
            gone.code = code = RUN_BROKEN_EXIT  # a fault of this machine: no bad input of the run
        loses_steps = self._phase == RUNNING and self._would_lose_steps(spec)
        may_again = self._phase == RUNNING and not final and not loses_steps
        again = may_again and self._restarts[spec.name].take()
        if again and self._starts_again(spec, gone.incarnation + 1):
            self._tell("restarted", f"{lost}; starting it again ({self._restarts[spec.name]})")
        elif self._phase == RUNNING and (loses_steps or not self._may_go_on_without(spec, refused=final)):
            self._fail(gone, refused=final and code == USER_ERROR_EXIT)
        elif self._phase == RUNNING:
            if not self.whole_run:  # this rank has failed, the run has not: it learns of it through its own protocol
                self._lost = self._noted(gone)
            self._tell("left", f"{lost}; the run goes on without it" + (spec.missed and f", {spec.missed}"))
            self._note_that_it_has_left(spec)
        else:
            said_so = code == RUN_ENDED_BROKEN_EXIT and spec.decides
            needed = self._was_to_save(spec) or (spec.essential and not self._ended_well)
            if (said_so or needed) and not self._failure:
                self._failure = self._noted(gone)
            elif spec.decides:
                self._lost = self._noted(gone)  # unless another one ends well
            self._tell("killed", f"{lost} while the run was ending")
            self._note_that_it_has_left(spec)

    def _would_lose_steps(self, spec: RoleProcess) -> bool:
        """Whether it would find the request to end, and take the checkpoint before the last steps for the run's end.

        Not where it had left, with the last one written.
        """
        if not spec.keeps_the_run:
            return False
        run = RunFolder(self.run_dir)
        try:
            return run.stop_reason() is not None and not run.has_left(spec.role, spec.rank)
        except OSError as error:
            self.say(f"whether the run was asked to end cannot be read ({error}): {spec.name} is not started again")
            return True

    def _was_to_save(self, spec: RoleProcess) -> bool:
        """Whether the last checkpoint was this process's to write, and it has not said that it has left."""
        try:
            return spec.saves_last and not RunFolder(self.run_dir).has_left(spec.role, spec.rank)
        except OSError:  # the folder is away: nobody can say that it has
            return True

    def _note_that_it_has_left(self, spec: RoleProcess) -> None:
        """Of an evaluator, which did not come to it: the monitor waits for one that may play on."""
        if spec.role == "evaluator":
            with suppress(UserError):  # a full disk: its patience has an end
                RunFolder(self.run_dir).note_left(spec.role, spec.rank)

    def _starts_again(self, spec: RoleProcess, incarnation: int) -> bool:
        """Whether this machine has room for it; where it has not, the run may go on without."""
        try:
            self._start(spec, incarnation)
        except (OSError, UserError) as error:
            self._tell("not_restarted", f"{spec.name} cannot be started again: {error}")
            return False
        return True

    def _let_readers_go(self) -> None:
        """Who only reads what others write is told when they are gone: it would wait for what is not to come."""
        if self.whole_run and self._phase in (ENDING, STOPPING) and all(p.spec.only_reads for p in self._live.values()):
            for running in self._live.values():
                running.child.ask_to_end()

    def _noted(self, gone: _Process) -> _Process:
        """For the other ranks of the run to read; in a folder that another launch has taken it would be that one's."""
        spec, node = gone.spec, os.environ.get("SLURMD_NODENAME")
        if gone.code != RUN_TAKEN_OVER_EXIT:
            note_failure(self.run_dir, spec.role, spec.rank, gone.code, gone.child.tail(), node)
        return gone

    def _may_go_on_without(self, spec: RoleProcess, refused: bool) -> bool:
        """Whether the run can: it is not needed, its input was not refused, and others are left to train and to end."""
        left = [running.spec for running in self._live.values()]
        decided = any(other.decides for other in left)
        trained = not spec.takes_part or any(other.role == spec.role for other in left)
        others = (decided and trained) if self.whole_run else not spec.keeps_the_run
        return not spec.essential and others and not (refused and spec.takes_part)

    def _fail(self, failed: _Process, refused: bool) -> None:
        self._failure = self._noted(failed)
        if refused and self._is_young:
            self._nothing_to_save = True
            self._stop(failed.cause, failed=True)
        else:
            self._stop(f"{failed.spec.name} failed ({describe_exit(failed.code)})", failed=True)

    @property
    def _is_young(self) -> bool:
        return time.monotonic() - self._started_s < self.stop_timeout_s

    def _stop(self, reason: str, failed: bool = False) -> None:
        try:
            self.request_stop(reason, failed=failed)
        except (UserError, OSError) as error:
            for running in self._live.values():
                running.child.ask_to_end()
            self.say(f"{error}; asked the processes of this machine alone to end")
        self._enter(STOPPING, self.refused_timeout_s if self._nothing_to_save else self.stop_timeout_s)
        self._tell("stopping", f"{reason}; ending the run" + ("" if self._nothing_to_save else " with a checkpoint"))

    def _signalled(self, signum: signal.Signals) -> None:
        # Launchers and schedulers repeat themselves (srun what scancel told the tasks too, Slurm at the end of a
        # preemption's GraceTime), and the time goes on for a checkpoint: only Ctrl-C is impatience.
        if self._phase >= STOPPING and signum != signal.SIGINT:
            return
        self._last_signal = signum
        if self.joins_late and self._phase < TERMINATING:  # it is this machine's: the run goes on, with another one
            self._terminate(signum.name)
        elif self._phase == RUNNING or (self._phase == ENDING and any(p.spec.saves_last for p in self._live.values())):
            self._stop(signum.name)
            if signum == signal.SIGINT:
                self.say("once more leaves the checkpoint a few seconds, a third time none")
        elif self._phase in (ENDING, STOPPING):
            self._terminate(signum.name)
        else:
            self._kill(signum.name)

    def _ended_elsewhere(self, well: bool) -> None:
        self._ended_well |= well
        saves = not self._is_young and any(running.spec.saves_alone for running in self._live.values())
        self._nothing_to_save = not well and not saves
        if self._phase == RUNNING and well:
            self._drain()
        elif self._phase == RUNNING:
            self._enter(ENDING, self.stop_timeout_s if saves else self.refused_timeout_s)

    def _too_slow(self) -> None:
        late = ", ".join(self._live)
        if self._phase in (ENDING, STOPPING) and not self._nothing_to_save:
            self._terminate(f"{late} did not end in time")
        elif self._phase < KILLING:
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
        self._forced = True
        for running in self._live.values():
            running.child.signal(signum)
        self._enter(phase, self.terminate_timeout_s)

    def _drain(self) -> None:
        """The run has ended: wait for those that are left, as long as the most patient of them may take."""
        if self._phase == RUNNING:
            self._ended_s = self._now_s()
        timeout_s = max((running.spec.drain_timeout_s for running in self._live.values()), default=0.0)
        self._enter(ENDING, max(0.0, self._ended_s + timeout_s - self._now_s()))

    def _tell(self, event: str, message: str) -> None:
        """After it was done: to tell of it can take long, or fail."""
        self.say(message)
        self.on_event(event, message)
