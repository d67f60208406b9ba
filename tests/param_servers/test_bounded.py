import threading

import pytest

from param_servers.bounded import Restarts, within


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
