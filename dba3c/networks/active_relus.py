"""How many hidden units are alive: the share of ReLU outputs above zero, looked at now and then.

A network calls ``torch.nn.functional.relu`` (as ``nn.ReLU`` does); while ``ActiveRelus`` watches, each call's output is
counted. Networks need not know, users' own neither, and steps that are not watched cost nothing (one that is, a twelfth
more: 128 steps of 8 Breakouts).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class ActiveRelus(TorchFunctionMode):
    """Watches the first of each ``every_s`` seconds' steps, and a twentieth of the time at most.

    ::

        with relus.watch():
            ...  # forward passes
        numbers |= relus.take()
    """

    def __init__(self, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._clock = every_s, clock
        self._due_s = self._began_s = clock()
        self._active = self._units = 0

    def watch(self) -> AbstractContextManager[object]:
        """Around forward passes; watches if it is time."""
        self._began_s = self._clock()
        return nullcontext() if self._began_s < self._due_s else self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        took_s = self._clock() - self._began_s
        self._due_s = self._began_s + max(self._every_s, 20 * took_s)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function is functional.relu:
            self._active += int(torch.count_nonzero(output.detach()))
            self._units += output.numel()
        return output

    def take(self) -> dict[str, float]:
        """{"active_relus": share in [0, 1]} once after each watched step that had ReLUs, else {}."""
        active, units = self._active, self._units
        self._active = self._units = 0
        return {"active_relus": active / units} if units else {}
