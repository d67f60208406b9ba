import threading

import pytest

from param_servers.patience import AwakeClock, Restarts, within


def test_what_ends_in_time_is_returned_or_raised():
    assert within(10, lambda: 3) == 3
    assert within(10, lambda: None) is None
    with pytest.raises(KeyError, match="lost"):
        within(10, lambda: {}["lost"])


def test_what_takes_too_long_is_left_behind():
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: release.wait(60))
    release.set()


def test_restarts_are_bounded_by_their_rate_not_by_their_total():
    now_s = [0.0]
    restarts = Restarts(2, 3600.0, clock=lambda: now_s[0])
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    assert str(restarts) == "2 of 2 within 1 h"
    now_s[0] = 3600.0
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    assert restarts.total == 4


def test_time_hardly_passes_while_the_process_is_stopped():
    reads = iter([100.0, 101.0, 102.9, 110.0, 111.0, 120.0])
    clock = AwakeClock(2.0, lambda: next(reads))
    assert [round(clock.now_s(), 6) for _ in range(2)] == [101.0, 102.9]
    assert clock.slept_s == 0.0 and clock.now_s() - clock.woke_s == 0.0
    assert round(clock.slept_s, 6) == 7.1
    assert round(clock.now_s(), 6) == 104.15
    assert round(clock.now_s() - clock.woke_s, 6) == 0.0 and clock.slept_s == 9.0


def test_time_passes_also_for_a_process_that_is_always_late():
    reads = iter(range(0, 3000, 3))
    clock = AwakeClock(2.0, lambda: float(next(reads)))
    assert [clock.now_s() for _ in range(100)][-1] == 25.0
