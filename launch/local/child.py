"""One child process: its own process group, its own log, its parent's death is its end."""

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from dba3c.errors import RUN_BROKEN_EXIT, warn_on_stderr
from launch.local.fork_server import PARENT_VARIABLE, RETURNED, ForkServer
from param_servers.libc import LIBC, PR_SET_PDEATHSIG

_DYING_S = 1.0  # of a process on a busy machine, from its first thread to its last
_ORPHAN_LOOK_S = 1.0
_TAIL_BYTES = 64 * 1024


class Child:
    """A started process.

    Args:
        main, words: "module:function", called with the words; its result is the exit code.
        on_exit: called once, from a thread, with the exit code (negative: a signal's number); 0 only where `main` has
            returned it.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        main: str,
        words: Sequence[str],
        log: Path,
        on_exit: Callable[[int], None],
        orphan_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.log, self._left_early = log, ""
        with _opened(log) as output:
            self.log_start = output.tell()
            self.pid = fork_server.fork(main, words, output.fileno(), orphan_signal)
        self._thread = threading.Thread(target=self._wait, args=(on_exit,), name=f"wait-{self.pid}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no room for a thread: nobody would notice its end
            self.signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise OSError(errno.EAGAIN, str(error)) from error

    def _wait(self, on_exit: Callable[[int], None]) -> None:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            # Still a zombie, so its number is still its own: what it left in its group can be killed safely.
            self.signal(signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # SIGCHLD is ignored here: it has ended, and nobody knows how
            code = RUN_BROKEN_EXIT
        if code == 0:
            code, self._left_early = RUN_BROKEN_EXIT, "\nsomething in it has ended the process with exit code 0"
        on_exit(0 if code == RETURNED else code)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process and all that it started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def ask_to_end(self) -> None:
        """SIGTERM to the process alone: what it has started is its own to end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def tail(self) -> str:
        """The last lines that this process, not an earlier incarnation, wrote to its log."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self.log_start, end - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError as error:
            return f"(its log {self.log} cannot be read: {error.strerror})"
        return "\n".join((text + self._left_early).splitlines()[-40:])


def _opened(log: Path) -> BinaryIO:
    """To append to; a disk that refuses a log does not refuse the process."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        warn_on_stderr(f"cannot write {log}: {error.strerror}; what this process says is lost")
        return open(os.devnull, "ab")


def before_exec(parent: int) -> Callable[[], None]:
    """For a child between fork and exec (only system calls): it gets SIGTERM when `parent`, its own, dies."""
    die = int(signal.SIGTERM)

    def prepare() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, die, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return prepare


def is_orphan() -> bool:
    """Whether the process that started this one has died: asked where a signal may be told by its death.

    Of its threads the first to go sends that signal, and it is there until the last has gone.
    """
    parent, until_s = os.environ.get(PARENT_VARIABLE, ""), time.monotonic() + _DYING_S
    while parent.isdigit() and time.monotonic() < until_s:
        if os.getppid() != int(parent):
            return True
        time.sleep(_DYING_S / 20)
    return False


def exit_with_parent(grace_s: float) -> None:
    """For a child that handles SIGTERM: end also when handling it takes for ever, or its signal was missed.

    `grace_s`: what an orphan may use for its checkpoint before it is killed. Does nothing when no `Child` started it.
    """
    parent = os.environ.get(PARENT_VARIABLE, "")
    if parent.isdigit():
        threading.Thread(target=_watch_parent, args=(int(parent), grace_s), name="parent", daemon=True).start()


def _watch_parent(parent: int, grace_s: float) -> None:
    while os.getppid() == parent:
        time.sleep(_ORPHAN_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    warn_on_stderr(f"the process {parent} that started this one has died: ending within {grace_s:.0f} s")
    time.sleep(grace_s)
    os.kill(os.getpid(), signal.SIGKILL)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""SIGUSR1: what ``--signal`` of our Slurm scripts sends before the time limit."""


@contextlib.contextmanager
def taking_signals(take: Callable[[int], None]) -> Iterator[None]:
    """Inside, `take` gets the number of each stop signal. Without effect outside the main thread.

    A SIGHUP that is ignored already stays so: that is what `nohup` asks for. So does a SIGUSR1 that C code handles, as
    faulthandler's may: Python could not give it back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(signum: int, frame: FrameType | None) -> None:
        take(signum)

    under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    kept = {signal.SIGHUP: under_nohup, signal.SIGUSR1: has_c_handler(signal.SIGUSR1)}
    before = {signum: signal.signal(signum, handler) for signum in STOP_SIGNALS if not kept.get(signum)}
    try:
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, signal.SIG_DFL if previous is None else previous)  # None: C code's, as SDL's


def has_c_handler(signum: signal.Signals) -> bool:
    """Whether a handler is there that Python does not know."""
    known, status = signal.getsignal(signum), Path("/proc/self/status").read_text(errors="replace")
    mask = status.partition("SigCgt:\t")[2].partition("\n")[0] or "0"  # not every sandbox's kernel tells it
    caught = int(mask, 16) >> (signum - 1) & 1
    return known is None or (known in (signal.SIG_DFL, signal.SIG_IGN) and bool(caught))


_pressed: list[int] = []


@contextlib.contextmanager
def remembering_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt as ever, but one that is swallowed (in a compiled module that is just
    being imported, numpy's random for one) is not lost: `raise_interrupt` raises it again."""

    def pressed(signum: int, frame: FrameType | None) -> None:
        _pressed.append(signum)
        raise KeyboardInterrupt

    _pressed.clear()
    in_main = threading.current_thread() is threading.main_thread()
    takes = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes:
        signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        if takes:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_interrupt() -> None:
    """Raise KeyboardInterrupt where it was raised before and is remembered, and did not end what it should have."""
    if _pressed and threading.current_thread() is threading.main_thread():
        _pressed.clear()
        raise KeyboardInterrupt


def describe_exit(code: int) -> str:
    """``exit code 1`` or ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def shell_code(code: int) -> int:
    """An exit code as a shell reports it: 128 + n for signal n."""
    return code if code >= 0 else 128 - code
