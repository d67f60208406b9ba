"""From what an environment gives to what a torso eats: images to channels, everything else to a vector.

Legend: B batch, K stacked frames, C colours, H height, W width, D features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from dba3c.errors import UserError


class ImageShape(NamedTuple):
    """Channels, height and width of the image that a torso sees."""

    channels: int
    height: int
    width: int


def is_image(space: spaces.Space) -> bool:
    """Whether observations are images: a uint8 box of two dimensions or more."""
    return isinstance(space, spaces.Box) and space.dtype == "uint8" and len(space.shape) >= 2


def image_shape(space: spaces.Space) -> ImageShape:
    """The channels-first shape of [H, W], [K, H, W], [H, W, C] or [K, H, W, C] observations (C < H, K ≤ W).

    Raises UserError when the space is no image.
    """
    if not is_image(space) or len(space.shape) > 4:  # type: ignore[arg-type]
        raise UserError(f"this network sees uint8 images ([H, W] to [K, H, W, C]), not {space}: use the mlp network")
    shape = tuple(space.shape or ())
    if len(shape) == 2:
        return ImageShape(1, *shape)
    if _colours_last(shape):
        return ImageShape(math.prod(shape[:-3]) * shape[-1], shape[-3], shape[-2])
    return ImageShape(*shape)


def _colours_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 or shape[-1] < shape[0]  # channels are fewer than rows


def pixels(observation: Tensor, dtype: torch.dtype, padding: int = 0) -> Tensor:
    """Uint8 [B, H, W], [B, K, H, W], [B, H, W, C] or [B, K, H, W, C] as channels_last [B, K·C + padding, H, W].

    Values stay 0…255, in ``dtype``; padding channels are zero. The bytes are interleaved before they are converted:
    a third of the time of ``.to(dtype, memory_format=torch.channels_last)``, which does both element by element.
    """
    shape = tuple(observation.shape[1:])
    if len(shape) == 2:
        frames: list[Tensor] = [observation.unsqueeze(-1)]
    elif len(shape) == 4:
        frames = list(observation.unbind(1))
    else:
        frames = [observation] if _colours_last(shape) else list(observation.unsqueeze(-1).unbind(1))
    if padding:
        frames.append(observation.new_zeros((*frames[0].shape[:-1], padding)))
    interleaved = frames[0] if len(frames) == 1 else torch.cat(frames, -1)
    return interleaved.to(dtype).permute(0, 3, 1, 2)


def vector_size(space: spaces.Space) -> int:
    """D, the length of the vector that ``as_vector`` makes of an observation. Raises UserError if there is none."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return math.prod(space.shape)
    raise UserError(f"observations of {space} are no vector: wrap it in gymnasium.wrappers.FlattenObservation")


def as_vector(observation: Tensor, space: spaces.Space, dtype: torch.dtype) -> Tensor:
    """[B, …] observations as [B, D] of ``dtype``: flattened boxes (uint8 to 0…1), one-hot for Discrete."""
    if isinstance(space, spaces.Discrete):
        return functional.one_hot(observation.long() - int(space.start), int(space.n)).to(dtype)
    vector = observation.flatten(1).to(dtype)
    return vector.div_(255) if observation.dtype == torch.uint8 else vector
