"""The first failure of a run is not lost among 64 ranks: it is noted in the run folder, and printed last.

A refusal, by which a run does not begin, is noted too: the ranks that wait for their chief stop waiting.

``python -m launch.local.failures RUN`` prints it: the last line of our Slurm scripts when a run ended badly.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dba3c.errors import UserError, warn_on_stderr
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.folder import RunFolder, taken_over
from dba3c.runs.lock import Holder
from launch.local.child import Child, describe_exit, shell_code
from launch.local.processes import RUN_TAKEN_OVER_EXIT, TRAINING_ROLES, USER_ERROR_EXIT, RoleProcess
from param_servers.errors import ConfigError

REFUSED = ".refused.json"


@dataclass(frozen=True)
class Failure:
    """What is known of a process that ended the run."""

    time_s: float
    role: str
    rank: int
    node: str
    code: int
    tail: str


def note_failure(run_dir: Path, role: str, rank: int, code: int, tail: str, node: str | None = None) -> None:
    """Write ``logs/failure-ROLE-RANK.json``; an older one of the same process is replaced. What the disk refuses is
    said on stderr: it is no reason not to end the run well."""
    failure = Failure(time.time(), role, rank, node or socket.gethostname(), code, tail)
    path = run_dir / "logs" / f"failure-{role}-{rank}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(failure)) + "\n")
    except OSError as error:
        warn_on_stderr(f"cannot write {path}: {error.strerror}")


def failures(run_dir: Path, since_s: float = 0.0) -> list[Failure]:
    """The failures noted since then, the first first; a torn note is passed over."""
    found = []
    for path in sorted((run_dir / "logs").glob("failure-*.json")):
        try:
            failure = Failure(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if failure.time_s >= since_s:
            found.append(failure)
    return sorted(found, key=lambda failure: failure.time_s)


@contextlib.contextmanager
def telling_refusals(run_dir: Path, launch_id: str) -> Iterator[None]:
    """Inside, the chief begins a run: why it cannot is noted for the ranks that wait for it, before it is raised.

    What cannot be noted, each rank finds out for itself: `RunFolder.refuse_unusable`.
    """
    path = run_dir / REFUSED
    with contextlib.suppress(OSError):
        if refusal(run_dir, launch_id):
            path.unlink(missing_ok=True)  # of an earlier try
    try:
        yield
    except Exception as error:
        why = str(error) if isinstance(error, (UserError, ConfigError)) else f"{type(error).__name__}: {error}"
        try:
            RunFolder.refuse_unusable(run_dir)
            write_atomically(path, json.dumps({"launch_id": launch_id, "why": why, "time_s": time.time()}) + "\n")
        except (OSError, UserError) as silenced:
            print(f"the ranks that wait cannot be told, and look for themselves: {silenced}", file=sys.stderr)
        raise


def refusal(run_dir: Path, launch_id: str | None = None, since_s: float = 0.0) -> str:
    """Why the chief of this launch (None: of any) refused to begin since then; "" where it has not."""
    try:
        noted = json.loads((run_dir / REFUSED).read_text())
        is_ours = launch_id in (None, noted["launch_id"]) and noted["time_s"] >= since_s
        return str(noted["why"]) if is_ours else ""
    except (OSError, ValueError, LookupError, TypeError):  # the next look is soon
        return ""


def report(run_dir: Path, since_s: float = 0.0) -> str:
    """For people: who failed, and the first one's traceback as the last thing. "" when none did."""
    found = failures(run_dir, since_s)
    if not found:
        return ""
    lines = [f"{f.role} {f.rank} on {f.node}: {describe_exit(f.code)}" for f in found]
    return "\n".join(
        [f"{len(found)} failed, the first first:", *lines, f"the end of the log of {lines[0]}", found[0].tail]
    )


class Failed(NamedTuple):
    """A process that ended otherwise than with 0."""

    spec: RoleProcess
    child: Child
    code: int

    @property
    def cause(self) -> str:
        """One line: the last that it said, or the signal that killed it."""
        if self.code < 0:
            return f"{self.spec.name}: {describe_exit(self.code)}"
        line = (self.child.tail().splitlines() or [f"{describe_exit(self.code)}, no word of it in its log"])[-1]
        return line if line.startswith(self.spec.name) else f"{self.spec.name}: {line}"


class Ending:
    """Collects while the run goes on.

    Args:
        run_dir: failures are noted in it, for the other ranks of the run to read.
        node: the cluster's name of this machine, where it has one.
    """

    def __init__(self, run_dir: Path, node: str | None) -> None:
        self.run_dir = run_dir
        self.node = node
        self.ended_well = False
        """A process that decides ended with 0."""
        self.forced = False
        """Somebody had to be terminated."""
        self._failure: Failed | None = None
        self._lost: Failed | None = None

    @property
    def failed(self) -> bool:
        """Whether it is known what ended the run."""
        return self._failure is not None

    @property
    def cause(self) -> str:
        """Why the run failed, in one line; "" when it did not."""
        failure = self._decisive
        return "" if failure is None else failure.cause

    @property
    def _decisive(self) -> Failed | None:
        return self._failure or (None if self.ended_well else self._lost)

    def fail(self, failed: Failed) -> None:
        """This is what ended the run."""
        self._failure = failed
        self._note(failed)

    def lose(self, failed: Failed) -> None:
        """The run goes on without this one; the rank does not."""
        self._lost = failed
        self._note(failed)

    def exit_code(self, say: Callable[[str], Any], *, stopped: bool, whole_run: bool, last_signal: int) -> int:
        """The supervisor's own. Says what failed, with the end of its log.

        Args:
            stopped: the run was asked to end and did.
            whole_run, last_signal: see `Supervisor`, `Phases`.
        """
        failure = self._decisive
        if failure is not None:
            spec, child, code = failure
            say(f"dba3c: {spec.name} failed ({describe_exit(code)}); the end of its log {child.log}:")
            say(child.tail())
            return shell_code(code)
        if self.ended_well:  # whoever had to be terminated after that was only slow to leave
            return 0
        if self.forced:
            return 128 + last_signal
        return 0 if stopped or not whole_run else 1

    def _note(self, failed: Failed) -> None:
        spec, child, code = failed
        note_failure(self.run_dir, spec.role, spec.rank, code, child.tail(), self.node)


STOP_COMMAND = "dba3c stop"
"""The reason of a run that its user stopped: like after Ctrl-C a study goes on with it."""


def note_end(folder: RunFolder, code: int, cause: str) -> str:
    """Write into meta.json how this life ended; returns the reason. A disk that refuses does not change the end.

    Args:
        cause: `Ending.cause`.
    """
    reason = cause or f"exit code {code}"
    try:
        how, reason = outcome(code, folder, cause)
        folder.end_life(how, reason)
    except (UserError, OSError) as error:
        warn_on_stderr(f"how the run ended cannot be noted: {error}")
    return reason


def outcome(code: int, folder: RunFolder, cause: str = "") -> tuple[str, str]:
    """How a life ended, for meta.json: (finished | stopped | failed, reason). `cause`: `Ending.cause`."""
    asked = folder.stop_reason()
    began_s = folder.life().get("started_s", 0.0)
    refused = [f for f in failures(folder.path, began_s) if f.code == USER_ERROR_EXIT and f.role in TRAINING_ROLES]
    if code != 0 or refused:
        return "failed", cause or asked or f"exit code {code}"
    if asked is not None and (asked.startswith("SIG") or asked == STOP_COMMAND):
        return "stopped", asked
    return "finished", asked or "the run has seen what it was to see"


def end_when_taken_over(folder: RunFolder, say: Callable[[str], Any] = lambda line: None) -> None:
    """From now on, let this process end at once when another launch takes the run folder, which is then not its own.

    Its children end with it, or by themselves: each follows the lock. `say` is not for a log in the folder.
    """

    def leave(successor: Holder) -> None:
        try:
            say(f"dba3c: {taken_over(folder.path, successor)}")
        finally:
            os._exit(RUN_TAKEN_OVER_EXIT)

    if folder.lock is not None:
        folder.lock.when_lost(leave)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of a run folder; 1 when there is one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) not in (1, 2):
        print("usage: python -m launch.local.failures RUN [SINCE_UNIX_SECONDS]", file=sys.stderr)
        return 2
    text = report(Path(arguments[0]), float(arguments[1]) if len(arguments) == 2 else 0.0)
    if text:
        print(text, file=sys.stderr)
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
