"""One process that has imported what roles need; every role of this machine is forked from it.

An import of torch costs two seconds of a core and 130 MB in each interpreter, so it is done once. The process computes
nothing, has no thread of its own and imports none of the user's code, so its forks are whole. Each becomes the child of
who asked for it, not of the fork server: what watches, kills and waits for roles need not know how they were made, and
roles outlive a fork server that was lost, which is started again when it is needed.

    launcher ── asks ──► fork server ── forks ──► (gone at once) ── forks ──► role
       ▲ subreaper while it asks: the kernel gives it the role whose parent has gone ──┘
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dba3c.errors import UserError
from param_servers.libc import LIBC, PR_SET_PDEATHSIG, nameless_file

ROLE_IMPORTS = (
    "launch.role",
    "dba3c.workers.worker",
    "dba3c.assembly.exchanges",
    "dba3c.metrics.monitor",
    "dba3c.central.learner",
    "dba3c.central.actor",
)
"""What evaluators and recorders need beyond it (SciPy, video) they import themselves: most runs have none."""
PARENT_VARIABLE = "DBA3C_PARENT_PID"
"""Tells a forked process whose child it is."""
RETURNED = 99
"""Exit code of a process whose main has returned 0: another's 0 is of code that has called exit."""
IMPORT_TIMEOUT_S = 600.0
"""A shared file system may be slow."""
FORK_TIMEOUT_S = 60.0
CLOSE_S = 5.0

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_MOST_BYTES = 1 << 17
_COMMAND_BYTES = 1024
"""Room for the command line of a role, as `ps` shows it."""
_ONE_AT_A_TIME = threading.Lock()
"""Who is a subreaper is a property of the process, which may have several runs."""


def running_module(module: str) -> list[str]:
    """The command `python -m module`, but that nothing in the current directory (the user's own launch.py, a queue.py)
    is taken for ours."""
    start = (
        "import sys; sys.path[:1] = filter(None, sys.path[:1]); "
        f"sys.path.append({str(Path(__file__).parents[2])!r}); "
        f"import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )
    return [sys.executable, "-c", start]


class ForkServer:
    """Starts roles. It imports while its maker goes on; the first start waits for that.

    Args:
        imports: modules that it has imported before it forks.
        environ: of all that is forked; None: this process's.
    """

    def __init__(
        self,
        imports: Sequence[str] = ROLE_IMPORTS,
        environ: Mapping[str, str] | None = None,
        import_timeout_s: float = IMPORT_TIMEOUT_S,
    ) -> None:
        self._import_timeout_s = import_timeout_s
        self._imports, self._environ = imports, dict(os.environ if environ is None else environ)
        self._begin()

    def _begin(self) -> None:
        self._ready = False
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = os.fdopen(nameless_file("fork-server"), "w+b")
        with theirs:
            module = [*running_module("launch.local.fork_server"), str(theirs.fileno()), *self._imports]
            self._process = subprocess.Popen(
                [*module, " " * (_COMMAND_BYTES - len(" ".join(module)))],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                env=self._environ,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a terminal's Ctrl-C is for the launcher, which decides
            )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, main: str, words: Sequence[str], output: int, orphan_signal: int) -> int:
        """Call `main` ("module:function") with the words in a child of this process; returns its pid.

        The child has a session of its own, its exit code is what `main` returns, RETURNED in place of 0.

        Args:
            output: descriptor that becomes the child's standard output and error.
            orphan_signal: what it gets when this process dies.

        Raises:
            OSError: this machine has no room for another process.
            UserError: what roles need cannot be imported.
        """
        request = {"main": main, "words": list(words), "parent": os.getpid(), "orphan_signal": int(orphan_signal)}
        with _ONE_AT_A_TIME, _adopting():
            try:
                answer = self._ask(request, output)
            except (ConnectionError, TimeoutError):
                self.close()
                self._begin()
                answer = self._ask(request, output)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return answer["pid"]

    def wait_until_ready(self) -> None:
        """Returns when all is imported. Raises UserError: it cannot be, or takes longer than `import_timeout_s`."""
        if self._ready:
            return
        self._link.settimeout(self._import_timeout_s)
        try:
            self._ready = bool(self._link.recv(_MOST_BYTES))
        except TimeoutError:
            raise UserError(f"{' '.join(self._imports)}: not imported within {self._import_timeout_s:g} s") from None
        if not self._ready:
            self._process.wait(CLOSE_S)
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").splitlines() or [f"code {self._process.returncode}"]
            raise UserError(f"what the processes of a run need cannot be imported: {said[-1]}")
        self._link.settimeout(FORK_TIMEOUT_S)

    def close(self) -> None:
        """It ends; what it has forked goes on."""
        self._link.close()
        if not self._ready:
            self._process.kill()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def _ask(self, request: Mapping[str, object], output: int) -> dict[str, int]:
        self.wait_until_ready()
        socket.send_fds(self._link, [json.dumps(request).encode()], [output])
        packet = self._link.recv(_MOST_BYTES)
        if not packet:
            raise ConnectionResetError("the fork server is gone")
        answer: dict[str, int] = json.loads(packet)
        return answer


@contextmanager
def _adopting() -> Iterator[None]:
    """Inside, a process whose parent has gone becomes a child of this one, if it descends from it."""
    before = ctypes.c_int()
    LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def serve(link: socket.socket, imports: Sequence[str]) -> Callable[[], int]:
    """What a forked process has to do, in each of them; in the fork server itself, its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an ignored one is inherited, and nobody learns of a child's end
    gc.disable()  # a tenth of the imports' time
    for module in imports:
        importlib.import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()  # what is there now stays shared: a collection would write to it
    link.send(b"ready")
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, _MOST_BYTES, 1)
        if not packet:
            return lambda: 0
        request = json.loads(packet)
        try:
            between = os.fork()
            if not between:
                return _forked(link, request, descriptors[0])
            if os.waitpid(between, 0)[1]:  # it was killed before it could answer
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            link.send(json.dumps({"errno": error.errno}).encode())
        os.close(descriptors[0])


def _forked(link: socket.socket, request: Mapping[str, Any], output: int) -> Callable[[], int]:
    """In the process between: forks the role and goes. In the role: becomes the child of who asked for it."""
    between, parent, words = os.getpid(), request["parent"], request["words"]
    try:
        role = os.fork()
    except OSError as error:
        link.send(json.dumps({"errno": error.errno}).encode())
        os._exit(0)
    if role:
        os._exit(0)
    while os.getppid() == between:
        os.sched_yield()
    os.setsid()
    LIBC.prctl(PR_SET_PDEATHSIG, request["orphan_signal"], 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    module, _, function = request["main"].partition(":")
    os.environ[PARENT_VARIABLE] = str(parent)
    sys.argv = [module, *words]
    _show_command([sys.executable, "-m", module, *words])
    link.send(json.dumps({"pid": os.getpid()}).encode())
    link.close()
    return lambda: int(getattr(importlib.import_module(module), function)(words))


def _end_without_taking_apart(code: list[int]) -> None:
    """As multiprocessing ends its processes. An interpreter that has torch takes itself apart for 0.3 s of a core, in
    which a fork also gets a copy of all that it shared."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # a full disk: what Python itself ends with then
        code[0] = code[0] or 120
    LIBC.fflush(None)  # what extensions have printed
    if "mpi4py.MPI" not in sys.modules:  # which is finalised by the end that is left out here
        os._exit(code[0])


def _show_command(words: Sequence[str]) -> None:
    """In /proc, `ps` and `pgrep`: as if this had been started with these words. What does not fit is cut off."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    text = b"\0".join(os.fsencode(word) for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    code = [1]  # of an error that nobody catches
    atexit.register(_end_without_taking_apart, code)  # registered first, called last
    try:
        sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:-1])() or RETURNED)
    except SystemExit as end:
        code[0] = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
