"""Torsos: from observations to features. Convolutions and residual blocks for images, perceptrons for the rest, and for
observations of both kinds one beside the other. Before them the layers that all networks are made of, orthogonally
initialised from one generator.

Legend: B batch, C channels (colours of stacked frames), H height, W width, D inputs, F features. Counts of
convolutional torsos are on 84×84 with four gray frames, and, with A = 4 actions, of the whole network.
"""

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from dba3c.environments.spaces import MixedSpace, NormalizedImage, is_image
from dba3c.errors import UserError

RELU_GAIN = 2.0**0.5
_BRANCH_GAIN = 0.5
"""Small, so that features do not grow with depth: at first each block is nearly the identity."""


def leaving_the_global_generator() -> AbstractContextManager[None]:
    """Around torch's own layers, which fill themselves from it: two processes that build a network from the same seed
    hold the same parameters, whatever they drew before. (`skip_init` imports SymPy: half a second of a core.)

    Without a generator of their own, networks are filled from it: it is seeded while a user's own is built.
    """
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


def convolve_pixels(layer: nn.Conv2d, pixels: Tensor, levels: int) -> Tensor:
    """The layer on pixels [B, C, H, W] as if they were over ``levels``: few weights are scaled, not many pixels."""
    weight = layer.weight * (1 / levels)
    return functional.conv2d(pixels, weight, layer.bias, layer.stride, layer.padding)


class ImageShape(NamedTuple):
    """Channels, height and width of the image that a torso sees; a byte b is the number (b − zero) / levels."""

    channels: int
    height: int
    width: int
    zero: int = 0
    levels: int = 255


def images_of(space: spaces.Space) -> list[ImageShape]:
    """The images of an observation, in order."""
    if isinstance(space, MixedSpace):
        return [ImageShape(*image) for image in space.images]
    return [image_shape(space)] if is_image(space) else []


def image_shape(space: spaces.Space) -> ImageShape:
    """Of observations [C, H, W], as environments give all images. Raises UserError when they are none."""
    if not is_image(space):
        raise UserError(f"this network sees uint8 images [C, H, W], not {space}: use the mlp network")
    meaning = (space.ZERO, space.LEVELS) if isinstance(space, NormalizedImage) else ()
    return ImageShape(*(space.shape or ()), *meaning)


def pixels(observation: Tensor, dtype: torch.dtype, padding: int = 0, zero: int = 0) -> Tensor:
    """Uint8 [B, C, H, W] as channels_last [B, C + padding, H, W].

    Values are 0…255 less ``zero``, in ``dtype``; padding channels are zero. The bytes are interleaved before they are
    converted: a third of the time of ``.to(dtype, memory_format=torch.channels_last)``, which does both element by
    element. Four planes are the bytes of one integer for each pixel: two thirds of the time of a concatenation (16
    images on a core: 108 against 170 μs).
    """
    if observation.shape[1] == 4 and not padding and sys.byteorder == "little":
        first, *others = (plane.to(torch.int32) for plane in observation.unbind(1))
        for place, plane in enumerate(others, 1):
            first.add_(plane, alpha=1 << 8 * place)
        interleaved = first.unsqueeze(-1).view(torch.uint8)
    else:
        planes = list(observation.unsqueeze(-1).unbind(1))
        if padding:
            planes.append(observation.new_full((*planes[0].shape[:-1], padding), zero))
        interleaved = planes[0] if len(planes) == 1 else torch.cat(planes, -1)
    values = interleaved.to(dtype)
    return (values.sub_(zero) if zero else values).permute(0, 3, 1, 2)


def vector_size(space: spaces.Space) -> int:
    """D, the length of the vector that ``as_vector`` makes of an observation. Raises UserError if there is none."""
    if isinstance(space, MixedSpace):
        raise UserError(f"{space} is no vector: use a network for images, as small or nature")
    return math.prod(space.shape or ())


def as_vector(observation: Tensor, dtype: torch.dtype, zero: int = 0, levels: int = 255) -> Tensor:
    """[B, …] observations as [B, D] of ``dtype``: flattened, uint8 as an `ImageShape` says."""
    vector = observation.flatten(1).to(dtype)
    return vector.sub_(zero).div_(levels) if observation.dtype == torch.uint8 else vector


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
        self.features, self.image = features, image
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
            size = f"{image.height}×{image.width}"
            raise UserError(f"images of {size} are too small for this network (resnet takes them)")
        self.connected = linear(channels * height * width, features, generator)

    def forward(self, observation: Tensor) -> Tensor:
        """Uint8 images [B, C, H, W] → features [B, F] of the parameters' dtype."""
        x = pixels(observation, self.connected.weight.dtype, self.padding, self.image.zero)
        for index, layer in enumerate(self.convolutions):
            x = convolve_pixels(cast(nn.Conv2d, layer), x, self.image.levels) if index == 0 else layer(x)
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


SMALLEST_SIDE, NATURE_SMALLEST_SIDE = 20, 36
"""Of an image that leaves something for the last convolution of `small_torso`, and of `nature_torso`."""


def small_torso(image: ImageShape, generator: torch.Generator) -> ConvolutionalTorso:
    """Mnih et al. 2013 (arXiv 1312.5602): 16×8×8/4, 32×4×4/2, FC 256. 676,144 parameters, 677,429 with heads."""
    return ConvolutionalTorso(image, [(16, 8, 4), (32, 4, 2)], 256, generator)


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

    With four gray 84×84 frames and sections (16, 32, 32): 1,089,232 parameters. With football's 16 planes of
    72×96 and (16, 32, 32, 32): 391,728.
    """

    def __init__(self, image: ImageShape, sections: tuple[int, ...], features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.features, self.image = features, image
        self.entries = nn.ModuleList()
        self.blocks = nn.ModuleList()
        channels, height, width = image.channels, image.height, image.width
        for outputs in sections:
            self.entries.append(convolution(channels, outputs, 3, generator, padding=1, gain=1.0))
            self.blocks.append(nn.Sequential(ResidualBlock(outputs, generator), ResidualBlock(outputs, generator)))
            channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.connected = linear(channels * height * width, features, generator)

    def forward(self, observation: Tensor) -> Tensor:
        """Uint8 images [B, C, H, W] → features [B, F] of the parameters' dtype."""
        x = pixels(observation, self.connected.weight.dtype, zero=self.image.zero)
        for index, (entry, blocks) in enumerate(zip(self.entries, self.blocks, strict=True)):
            x = convolve_pixels(cast(nn.Conv2d, entry), x, self.image.levels) if index == 0 else entry(x)
            x = blocks(functional.max_pool2d(x, 3, stride=2, padding=1))
        flat = functional.relu(x, inplace=True).permute(0, 2, 3, 1).flatten(1)
        return functional.relu(self.connected(flat), inplace=True)


def resnet_torso(image: ImageShape, generator: torch.Generator) -> ResidualTorso:
    """IMPALA's sections 16, 32, 32 and FC 256."""
    return ResidualTorso(image, (16, 32, 32), 256, generator)


def football_torso(image: ImageShape, generator: torch.Generator) -> ResidualTorso:
    """Google Research Football's (arXiv 1907.11180) sections 16, 32, 32, 32 and FC 256."""
    return ResidualTorso(image, (16, 32, 32, 32), 256, generator)


def perceptron(sizes: list[int], generator: torch.Generator, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers of ``sizes`` (inputs first), each followed by the activation: [B, sizes[0]] → [B, sizes[-1]]."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [linear(inputs, outputs, generator), activation()]
    return nn.Sequential(*layers)


class PerceptronTorso(nn.Module):
    """Two tanh layers of 64 for the policy and, when ``separate``, two more for the value.

    With D inputs 64·D + 4,224 parameters, twice that when separate (CartPole, D = 4: 8,960; 9,155 with heads).
    """

    def __init__(
        self,
        space: spaces.Space,
        generator: torch.Generator,
        *,
        hidden: tuple[int, ...] = (64, 64),
        separate: bool = True,
    ) -> None:
        super().__init__()
        sizes = [vector_size(space), *hidden]
        self.features = hidden[-1] * (2 if separate else 1)
        self.policy = perceptron(sizes, generator)
        self.value = perceptron(sizes, generator) if separate else None
        self.byte_meaning = (space.ZERO, space.LEVELS) if isinstance(space, NormalizedImage) else ()

    def forward(self, observation: Tensor) -> Tensor:
        """Observations [B, …] → features [B, F]: the policy's, then (when separate) the value's."""
        vector = as_vector(observation, next(self.parameters()).dtype, *self.byte_meaning)
        if self.value is None:
            return self.policy(vector)
        return torch.cat((self.policy(vector), self.value(vector)), -1)


def split(observation: Tensor, space: MixedSpace) -> tuple[list[Tensor], Tensor]:
    """Observations uint8 [B, N] → their images, uint8 [B, C, H, W] each, and their vector float32 [B, D]."""
    *parts, numbers = observation.split([*map(math.prod, space.images), 4 * space.vector_size], 1)
    images = [part.unflatten(1, image) for part, image in zip(parts, space.images, strict=True)]
    vector = numbers.clone(memory_format=torch.contiguous_format)  # aligned for float32
    return images, vector.view(torch.float32) if space.vector_size else vector.float()


class FusionTorso(nn.Module):
    """A torso for each image of a mixed space and two tanh layers of 64 for its vector, side by side; then FC 256 and
    ReLU, so that what is seen in one can depend on the other."""

    features = 256

    def __init__(self, space: MixedSpace, image_torso: Callable[..., Any], generator: torch.Generator) -> None:
        super().__init__()
        self.space, hidden = space, 64
        self.images = nn.ModuleList(image_torso(ImageShape(*image), generator) for image in space.images)
        self.vector = perceptron([space.vector_size, hidden, hidden], generator) if space.vector_size else None
        parts = sum(cast(int, torso.features) for torso in self.images) + (hidden if self.vector else 0)
        self.connected = linear(parts, self.features, generator)

    def forward(self, observation: Tensor) -> Tensor:
        """Uint8 [B, N] → features [B, F] of the parameters' dtype."""
        images, vector = split(observation, self.space)
        features = [torso(image) for torso, image in zip(self.images, images, strict=True)]
        if self.vector is not None:
            features.append(self.vector(vector.to(self.connected.weight.dtype)))
        return functional.relu(self.connected(torch.cat(features, -1)), inplace=True)


def torso_for(space: spaces.Space, image_torso: Callable[..., Any], generator: torch.Generator) -> Any:
    """What `image_torso(image, generator)` makes, for observations that are an image or have some.

    Raises UserError when they have none.
    """
    if isinstance(space, MixedSpace):
        return FusionTorso(space, image_torso, generator)
    return image_torso(image_shape(space), generator)
