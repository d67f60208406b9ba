"""IMPALA's deep residual torso (Espeholt et al. 2018, arXiv 1802.01561, figure 3). Legend: B batch, F features."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dba3c.networks.layers import convolution, convolve_pixels, linear
from dba3c.networks.observations import ImageShape, pixels

_BRANCH_GAIN = 0.5
"""Small, so that features do not grow with depth: at first each block is nearly the identity."""


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3×3 convolutions of C channels: 18·C² + 2·C parameters."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, generator, padding=1)
        self.second = convolution(channels, channels, 3, generator, padding=1, gain=_BRANCH_GAIN)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] → the same shape."""
        return x + self.second(functional.relu(self.first(functional.relu(x)), inplace=True))


class ResidualTorso(nn.Module):
    """Sections of a 3×3 convolution, a 3×3/2 max pool and two residual blocks; then FC and ReLU.

    With four gray 84×84 frames and sections (16, 32, 32): 1,089,232 parameters. With football's 72×96×4 and (16, 32,
    32, 32): 390,000.
    """

    def __init__(self, image: ImageShape, sections: tuple[int, ...], features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.features = features
        self.entries = nn.ModuleList()
        self.blocks = nn.ModuleList()
        channels, height, width = image
        for outputs in sections:
            self.entries.append(convolution(channels, outputs, 3, generator, padding=1, gain=1.0))
            self.blocks.append(nn.Sequential(ResidualBlock(outputs, generator), ResidualBlock(outputs, generator)))
            channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.connected = linear(channels * height * width, features, generator)

    def forward(self, observation: Tensor) -> Tensor:
        """Uint8 images [B, …] → features [B, F] of the parameters' dtype."""
        x = pixels(observation, self.connected.weight.dtype)
        for index, (entry, blocks) in enumerate(zip(self.entries, self.blocks, strict=True)):
            x = convolve_pixels(cast(nn.Conv2d, entry), x) if index == 0 else entry(x)
            x = blocks(functional.max_pool2d(x, 3, stride=2, padding=1))
        flat = functional.relu(x, inplace=True).permute(0, 2, 3, 1).flatten(1)
        return functional.relu(self.connected(flat), inplace=True)


def resnet_torso(image: ImageShape, generator: torch.Generator) -> ResidualTorso:
    """IMPALA's sections 16, 32, 32 and FC 256."""
    return ResidualTorso(image, (16, 32, 32), 256, generator)


def football_torso(image: ImageShape, generator: torch.Generator) -> ResidualTorso:
    """Google Research Football's (arXiv 1907.11180) sections 16, 32, 32, 32 and FC 256."""
    return ResidualTorso(image, (16, 32, 32, 32), 256, generator)
