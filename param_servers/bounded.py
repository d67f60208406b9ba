"""A bound for calls that have none of their own, such as those of torch's store when its host is stopped."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(timeout_s: float, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own; that thread is left behind when it takes too long.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
        What `work` raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="bounded", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return results[0]
