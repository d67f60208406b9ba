"""A Ctrl-C that a compiled module swallows while it is imported, and signals that are a program's own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.local.child import raise_interrupt, remembering_interrupts, taking_signals

DUMPS_ITS_STACK = """
import faulthandler, signal
from launch.local.child import taking_signals
faulthandler.register(signal.SIGUSR1)
for signum in (signal.SIGTERM, signal.SIGUSR1):
    with taking_signals(print):
        signal.raise_signal(signum)
signal.raise_signal(signal.SIGUSR1)
"""


HANDLES_IN_C = """
import ctypes, signal
from launch.local.child import taking_signals
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda signum: print("C"))
ctypes.CDLL(None).signal(signal.SIGTERM, handler)
with taking_signals(print):
    signal.raise_signal(signal.SIGTERM)
"""
TELLS_WHAT_IS_CAUGHT = "SigCgt:" in Path("/proc/self/status").read_text()


def swallows(signum: int) -> bool:
    """As what Cython makes of a module does when it cannot be initialised."""
    try:
        signal.raise_signal(signum)
    except BaseException:
        return True
    return False


def test_an_interrupt_that_was_swallowed_is_raised_where_it_is_asked_for() -> None:
    with remembering_interrupts():
        raise_interrupt()
        assert swallows(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_interrupt()
        raise_interrupt()  # once
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_takes_interrupts_otherwise_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with remembering_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not TELLS_WHAT_IS_CAUGHT, reason="this kernel does not tell which signals are caught")
def test_a_signal_that_faulthandler_has_stays_its_own() -> None:
    program = [sys.executable, "-c", DUMPS_ITS_STACK]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    said = f"{int(signal.SIGTERM)}\n"
    assert (done.returncode, done.stdout, done.stderr.count("most recent call first")) == (0, said, 2), done.stderr


def test_a_handler_of_c_code_for_the_end_of_the_process_is_not_stronger_than_the_run_s() -> None:
    done = subprocess.run([sys.executable, "-c", HANDLES_IN_C], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{int(signal.SIGTERM)}\n"), done.stderr


def test_a_signal_whose_handler_cannot_be_given_back_gets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    getsignal, set_signal = signal.getsignal, signal.signal
    before = getsignal(signal.SIGTERM)

    def set_in_c(signum: signal.Signals, handler: object) -> object:
        previous = set_signal(signum, handler)  # type: ignore[arg-type]
        return None if signum == signal.SIGTERM else previous

    monkeypatch.setattr(signal, "signal", set_in_c)
    try:
        with taking_signals(lambda signum: None):
            assert callable(getsignal(signal.SIGTERM))
        assert getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        set_signal(signal.SIGTERM, before)
