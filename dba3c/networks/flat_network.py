"""A network whose parameters arrive, and whose gradient leaves, as one flat float32 vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from param_servers.layout import FlatLayout

COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FlatNetwork:
    """Args:
    network: becomes this object's own; any module.
    layout: where each of its parameters lies in the flat vector [P].
    precision: "float32" or "bfloat16", the compute dtype of the network's torso, where it has one.
    device: where it computes.
    """

    def __init__(self, network: Any, layout: FlatLayout, *, precision: str = "float32", device: str = "cpu") -> None:
        self.device = torch.device(device)
        if hasattr(network, "torso"):
            network.torso.to(dtype=COMPUTE_DTYPES[precision])
        self.network = network.to(self.device, memory_format=torch.channels_last)
        self.layout = layout
        self._gradient = torch.zeros(layout.numel)
        named = dict(network.named_parameters())
        self._parameters = [named[name] for name in layout.names]
        self._gradient_views = list(layout.views(self._gradient).values())

    def load(self, parameters: Tensor) -> None:
        """Take the flat float32 parameters [P], casting to the compute dtype."""
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, list(self.layout.views(parameters).values()))

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The gradient [P] float32 of a scalar loss, in a buffer that the next call reuses."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            torch._foreach_copy_(self._gradient_views, [_gradient_of(p) for p in self._parameters])
        return self._gradient


def _gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
