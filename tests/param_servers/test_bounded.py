import threading

import pytest

from param_servers.bounded import within


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
