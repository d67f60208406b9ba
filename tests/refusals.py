"""System calls that fail."""

import os
from collections.abc import Callable
from typing import NoReturn


def refusing(code: int) -> Callable[..., NoReturn]:
    """Stands in for a call that fails with this errno, whatever it is given."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return refuse
