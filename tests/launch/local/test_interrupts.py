"""A Ctrl-C that a compiled module swallows while it is imported, and signals that are a program's own."""

import signal
import subprocess
import sys

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


def test_a_signal_that_faulthandler_has_stays_its_own() -> None:
    program = [sys.executable, "-c", DUMPS_ITS_STACK]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    said = f"{int(signal.SIGTERM)}\n"
    assert (done.returncode, done.stdout, done.stderr.count("most recent call first")) == (0, said, 2), done.stderr


def test_a_signal_whose_handler_could_not_be_given_back_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    getsignal = signal.getsignal
    before = getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda signum: None)  # as of one that was set in C
    with taking_signals(lambda signum: None):
        assert getsignal(signal.SIGTERM) is before
