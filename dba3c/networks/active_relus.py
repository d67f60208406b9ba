"""How many hidden units are alive: the share of ReLU outputs above zero, looked at now and then.

A network calls ``torch.nn.functional.relu`` (as ``nn.ReLU`` does); while ``ActiveRelus`` watches, each call's output is
counted. Networks need not know, users' own neither, and steps that are not watched cost nothing.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class ActiveRelus(TorchFunctionMode):
    """Watches the first of each ``every_s`` seconds' steps.

    ::

        with relus.watch():
            ...  # forward passes
        numbers |= relus.take()
    """

    def __init__(self, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._clock = every_s, clock
        self._due_s = clock()
        self._active = self._units = 0

    def watch(self) -> AbstractContextManager[object]:
        """Around forward passes; watches if it is time."""
        now_s = self._clock()
        if now_s < self._due_s:
            return nullcontext()
        self._due_s = now_s + self._every_s
        return self

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
