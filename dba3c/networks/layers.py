"""Linear and convolutional layers, orthogonally initialised from one generator.

``nn.Linear`` and ``nn.Conv2d`` fill themselves from torch's global generator; these do not touch it, so that two
processes that build a network from the same seed hold the same parameters whatever they drew before. Without one it is
torch's global generator, which is seeded while a network of the user's own is built.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional

RELU_GAIN = 2.0**0.5
TANH_GAIN = 2.0**0.5


def leaving_the_global_generator() -> AbstractContextManager[None]:
    """Around torch's own layers, which fill themselves. (`skip_init` imports SymPy: half a second of a core.)"""
    return torch.random.fork_rng(devices=())


def linear(inputs: int, outputs: int, generator: torch.Generator | None, gain: float = RELU_GAIN) -> nn.Linear:
    """A fully connected layer, orthogonal with ``gain``, zero bias; ``inputs·outputs + outputs`` parameters."""
    with leaving_the_global_generator():
        layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    generator: torch.Generator,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
    gain: float = RELU_GAIN,
) -> nn.Conv2d:
    """A square convolution, orthogonal with ``gain``, zero bias; ``inputs·outputs·kernel² (+ outputs)`` parameters."""
    with leaving_the_global_generator():
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def convolve_pixels(layer: nn.Conv2d, pixels: Tensor) -> Tensor:
    """The layer on pixels [B, C, H, W] of 0…255 as if they were 0…1: few weights are scaled, not many pixels."""
    weight = layer.weight * (1 / 255)
    return functional.conv2d(pixels, weight, layer.bias, layer.stride, layer.padding)
