"""Feed-forward torsos for stacked frames: the DBA3C network of 2017, the Nature network, a small one.

Legend: B batch, F features. Inputs are uint8 images in any layout that ``observations.image_shape`` knows; counts in
the docstrings are of the torso on 84×84 with four gray frames, and, with A = 4 actions, of the whole network.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dba3c.errors import UserError
from dba3c.networks.layers import convolution, convolve_pixels, linear
from dba3c.networks.observations import ImageShape, pixels


class ConvolutionalTorso(nn.Module):
    """Convolutions, each with ReLU and optionally a 2×2 max pool, then one fully connected ReLU layer."""

    def __init__(
        self,
        image: ImageShape,
        layers: list[tuple[int, int, int]],
        features: int,
        generator: torch.Generator,
        *,
        pools: int = 0,
        bias: bool = True,
        pad_channels_to: int = 0,
    ) -> None:
        """Build ``layers`` of (channels, kernel, stride); the first ``pools`` of them are followed by a max pool.

        Raises UserError when the image is too small for them.
        """
        super().__init__()
        self.features = features
        self.padding = max(0, pad_channels_to - image.channels)
        self.pools = pools
        self.convolutions = nn.ModuleList()
        channels, height, width = image.channels + self.padding, image.height, image.width
        for index, (outputs, kernel, stride) in enumerate(layers):
            self.convolutions.append(convolution(channels, outputs, kernel, generator, stride=stride, bias=bias))
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if index < pools:
                height, width = height // 2, width // 2
            channels = outputs
        if height < 1 or width < 1:
            raise UserError(f"images of {image.height}×{image.width} are too small for this network: nothing is left")
        self.connected = linear(channels * height * width, features, generator)

    def forward(self, observation: Tensor) -> Tensor:
        """Uint8 images [B, …] → features [B, F] of the parameters' dtype."""
        x = pixels(observation, self.connected.weight.dtype, self.padding)
        for index, layer in enumerate(self.convolutions):
            x = convolve_pixels(cast(nn.Conv2d, layer), x) if index == 0 else layer(x)
            x = functional.relu(x, inplace=True)
            if index < self.pools:
                x = functional.max_pool2d(x, 2)
        # rows, columns, channels: no copy when the activations are channels_last
        return functional.relu(self.connected(x.permute(0, 2, 3, 1).flatten(1)), inplace=True)


def dba3c_torso(image: ImageShape, generator: torch.Generator) -> ConvolutionalTorso:
    """The network of Adamski et al. 2018 (arXiv 1801.02852): 5×5, 5×5, 5×5, 3×3 convolutions, three pools, FC 128.

    As in its authors' program: valid padding, convolutions without bias. RGB stacks (12 channels) are zero-padded to
    16 channels, as theirs were: 331,392 parameters, 332,037 with heads (1.33 MB). Four gray frames: 321,792, 322,437.
    """
    layers = [(32, 5, 1), (32, 5, 1), (64, 5, 1), (64, 3, 1)]
    pad_to = 16 if image.channels == 12 else 0
    return ConvolutionalTorso(image, layers, 128, generator, pools=3, bias=False, pad_channels_to=pad_to)


def nature_torso(image: ImageShape, generator: torch.Generator) -> ConvolutionalTorso:
    """Mnih et al. 2015 (Nature 518): 32×8×8/4, 64×4×4/2, 64×3×3, FC 512. 1,684,128 parameters, 1,686,693 with heads."""
    return ConvolutionalTorso(image, [(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512, generator)


def small_torso(image: ImageShape, generator: torch.Generator) -> ConvolutionalTorso:
    """Mnih et al. 2013 (arXiv 1312.5602): 16×8×8/4, 32×4×4/2, FC 256. 676,144 parameters, 677,429 with heads."""
    return ConvolutionalTorso(image, [(16, 8, 4), (32, 4, 2)], 256, generator)
