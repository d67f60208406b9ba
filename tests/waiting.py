"""How tests wait for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 200.0) -> None:
    """Poll until it is so; the bound is for a test that fails."""
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
