"""A Ctrl-C that a compiled module swallows while it is imported."""

import signal

import pytest

from launch.local.child import raise_interrupt, remembering_interrupts


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
