"""Standard output and error of a process that trains: reporting may fail, training may not fail because of it.

`harmless_output` is the one place where that is seen to. Inside it no print, warning or live view can raise, hang or
change an exit code: a terminal that was closed (EIO), a pipe whose reader has left (EPIPE) or a full disk behind a
redirection swallow what is said; one that is stopped (Ctrl-S, `| less`) holds its writer up for a moment, once; a
character that its encoding lacks is written as an escape. A program of the user's own keeps its streams: there `say`
swallows what cannot be written.
"""

import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from param_servers.timeouts import LeavableThread

PATIENCE_S = 1.0
"""How long a writer waits for a terminal that takes nothing, once; until it takes something again nobody waits."""
_LOOKS = 10
_MOST_UNSAID = 200


def say(line: str, to: TextIO | None = None) -> None:
    """A line to stdout, or elsewhere, where it can be written."""
    with suppress(OSError, ValueError):  # nobody reads it, it is closed, its encoding lacks a character
        print(line, file=to, flush=True)


def say_to_stderr(line: str) -> None:
    if sys.stderr is not None:  # print would take stdout
        say(line, sys.stderr)


@contextmanager
def harmless_output() -> Iterator[None]:
    """Inside, `sys.stdout` and `sys.stderr` are harmless; whatever of them is no file of this process stays as it is.

    At the end what was said has `PATIENCE_S` to arrive.
    """
    before = sys.stdout, sys.stderr
    speaker = _Speaker()
    sys.stdout, sys.stderr = speaker.instead_of(before[0]), speaker.instead_of(before[1])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        speaker.finish()
        sys.stdout, sys.stderr = before


class _Speaker:
    """Writes to file descriptors, in the order of the calls, from a thread that can be left behind."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # a fork (a lane) has no thread of its parent's

    def _begin(self) -> None:
        self._thread = LeavableThread("speaker")
        self._unsaid: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def instead_of(self, stream: TextIO | None) -> TextIO:
        """A stream to the same file; a closed one is one that nobody reads."""
        if stream is None:
            return open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")
        try:
            descriptor = stream.fileno()
            with suppress(OSError):
                stream.flush()
        except (OSError, ValueError, AttributeError):
            return stream
        raw = io.BufferedWriter(_Harmless(descriptor, self))
        return io.TextIOWrapper(raw, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)

    def say(self, descriptor: int, text: bytes) -> None:
        """Returns when it is written, or `PATIENCE_S` later; at once while something before it is stuck."""
        with self._lock:
            self._forget_what_was_said()
            if len(self._unsaid) >= _MOST_UNSAID:
                return
            held_up = bool(self._unsaid)
            try:
                said = self._thread.submit(lambda: _write(descriptor, text))
            except RuntimeError:  # no room for a thread: what is said next may find some
                return
            self._unsaid.append(said)
        for _ in range(0 if held_up else _LOOKS):  # while this process is stopped, one of them passes
            if wait([said], PATIENCE_S / _LOOKS).done:
                break

    def finish(self) -> None:
        """Wait for what is unsaid, for a bounded time."""
        with self._lock:
            self._forget_what_was_said()
            unsaid = list(self._unsaid)
        wait(unsaid, PATIENCE_S)
        self._thread.close(0.0)

    def _forget_what_was_said(self) -> None:
        while self._unsaid and self._unsaid[0].done():
            self._unsaid.popleft()


class _Harmless(io.FileIO):
    """A file whose writes always succeed."""

    def __init__(self, descriptor: int, speaker: _Speaker) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._speaker = speaker

    def write(self, data: Any) -> int:
        text = bytes(data)
        self._speaker.say(self.fileno(), text)
        return len(text)


def _write(descriptor: int, text: bytes) -> None:
    """All of it, or as much as is taken before it fails: then nobody is there to be told."""
    while text:
        try:
            text = text[os.write(descriptor, text) :]
        except BlockingIOError:  # somebody who shares the terminal has made it non-blocking
            select.select([], [descriptor], [], PATIENCE_S)
        except OSError:
            return
