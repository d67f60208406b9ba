"""Which observations and actions training understands (docs/environments.md, "What is supported"), and how an
environment's own are turned into them: images uint8 [C, H, W], a vector float32 [D], or both as a `MixedSpace`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from dba3c.errors import UserError

_MOST_CHANNELS = 64  # between a stack of frames and the side of a small image


class CodedBox(spaces.Box):
    """As an `ObservationCodec` made it, for another one perhaps: what is in it is taken as it is."""


class NormalizedImage(CodedBox):
    """Images uint8 [C, H, W] whose byte b is the number (b − ZERO) / LEVELS, from −5.12 to 5.08."""

    ZERO, LEVELS = 128, 25

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(0, 255, shape, np.uint8)


class MixedSpace(CodedBox):
    """Images and a vector as uint8 [N]: the pixels of each image [C, H, W], then the bytes of the D float32 numbers.

    One array of bytes, so that rollouts, links and replay take it like any other observation.
    """

    def __init__(self, images: Sequence[tuple[int, int, int]], vector_size: int) -> None:
        self.images = tuple(images)
        self.vector_size = vector_size
        self.vector_at = sum(math.prod(image) for image in self.images)
        super().__init__(0, 255, (self.vector_at + 4 * vector_size,), np.uint8)

    def __repr__(self) -> str:
        return f"MixedSpace(images {list(self.images)}, {self.vector_size} numbers)"

    def numbers(self, observations: np.ndarray) -> np.ndarray:
        """The float32 [..., D] of observations [..., N], as a view."""
        return observations[..., self.vector_at :].view(np.float32)

    def pictures(self, row: np.ndarray) -> list[np.ndarray]:
        """The images [C, H, W] of one observation [N], as views."""
        begins = itertools.accumulate((math.prod(image) for image in self.images), initial=0)
        return [row[at : at + math.prod(image)].reshape(image) for at, image in zip(begins, self.images, strict=False)]


class ObservationCodec:
    """Turns one environment's observations into what networks take: `space`, and `write(observation, row)`."""

    def __init__(self, env_id: str, original: spaces.Space[Any]) -> None:
        self._original, self._is_box = original, isinstance(original, spaces.Box)
        shape: Any = original.shape
        self._shape, self._dtype = shape, original.dtype
        self.space: spaces.Box
        if isinstance(original, CodedBox):  # written by the process that it comes from
            self.space = original
        elif is_image(original):
            self.space = CodedBox(0, 255, _channels_first(shape)[1], np.uint8)
        else:
            images, size = _parts(env_id, original, "observation")
            self.space = MixedSpace(images, size) if images else CodedBox(-np.inf, np.inf, (size,), np.float32)
        self._is_float = self.space.dtype == np.float32
        self._at_once = (
            self._is_box
            and self._shape == self.space.shape
            and np.dtype(self._dtype).kind == self.space.dtype.kind
            and (self._is_float or _brightened_by(original) == 1)
        )

    def write(self, observation: Any, row: np.ndarray) -> None:
        """Put `observation` into `row` (shape and dtype of `space`). Raises ValueError saying what does not fit.

        Whether its numbers are finite is not looked at here but for a whole batch: see `may_be_broken`.
        """
        if not self._is_box:
            numbers, pictures = row, []
            if isinstance(self.space, MixedSpace):
                numbers, pictures = self.space.numbers(row), self.space.pictures(row)
            _write(self._original, observation, numbers, 0, "observation", iter(pictures))
            return
        array = np.asarray(observation)
        _check_array(array, self._shape, self._dtype, "observation")
        _write_box(self._original, array, row)

    def write_all(self, observations: list[Any], batch: np.ndarray) -> bool:
        """Put all into `batch` [B, ...] at once; False where one does not fit as it is: `write` says which, and why."""
        if not self._at_once:
            return False
        try:
            if {observation.shape for observation in observations} != {self._shape}:
                return False
            rows = batch.reshape(-1, *self._shape[1:])  # what np.stack does in twice the time
            # a float may be rounded; an integer that is too large would become another one, which `write` looks at
            np.concatenate(observations, out=rows, casting="same_kind" if rows.dtype.kind == "f" else "safe")
        except Exception:  # whatever a stranger's observation raises, `write` raises for that one alone
            return False
        return True

    def may_be_broken(self, batch: np.ndarray) -> bool:
        """Whether observations [B, ...] may hold NaN or infinite numbers; sums of huge ones are suspected too."""
        numbers = self._numbers(batch)
        return numbers is not None and not np.isfinite(np.add.reduce(numbers, axis=None))

    def check_finite(self, row: np.ndarray) -> None:
        """Raise ValueError where `row` holds NaN or infinite numbers."""
        numbers = self._numbers(row)
        if numbers is not None and not np.isfinite(numbers).all():
            raise ValueError("observation with NaN or infinite numbers")

    def _numbers(self, observations: np.ndarray) -> np.ndarray | None:
        """What of them could be no number."""
        if isinstance(self.space, MixedSpace):
            return self.space.numbers(observations)
        return observations if self._is_float else None


class ActionCodec:
    """Turns the agent's actions into one environment's: `space`, and `read_all(actions)`."""

    def __init__(self, env_id: str, original: spaces.Space[Any]) -> None:
        self.space = original
        self.read_all: Callable[[np.ndarray], list[Any]]
        """The actions [B, ...] one by one, as the environments take them."""
        is_vector = len(original.shape or ()) == 1 and original.shape != (0,)
        if isinstance(original, spaces.Discrete):
            start = int(original.start)
            # not as Python's int: Discrete.contains, which many environments ask, takes twice as long for one
            self.read_all = lambda actions: list((actions + start).astype(original.dtype, copy=False))
        elif isinstance(original, spaces.MultiDiscrete) and is_vector:
            self.read_all = lambda actions: list(actions.astype(original.dtype) + original.start)
        elif isinstance(original, spaces.Box) and is_vector and original.dtype.kind == "f":
            low, high = original.low, original.high
            self.read_all = lambda actions: list(np.clip(actions, low, high).astype(original.dtype, copy=False))
        else:
            raise UserError(
                f"{env_id}: actions {original} are not supported; Discrete, MultiDiscrete [K] and float Box [A] are"
            )

    def check(self, actions: np.ndarray, num_envs: int) -> np.ndarray:
        """The actions as an array whose shape and kind fit; raises `UserError` where they do not."""
        actions = np.asarray(actions)
        shape = (num_envs, *(self.space.shape or ()))
        kinds = "f" if isinstance(self.space, spaces.Box) else "iu"
        if actions.shape != shape or actions.dtype.kind not in kinds:
            wanted = "floats" if kinds == "f" else "integers"
            raise UserError(f"actions must be {wanted} {list(shape)}, not {actions.dtype} {list(actions.shape)}")
        return actions


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether a space holds uint8 images: [H, W], three-dimensional, or a stack of those."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)


def _channels_first(shape: tuple[int, ...]) -> tuple[bool, tuple[int, int, int]]:
    """Of an image [H, W], [H, W, C] or [C, H, W], or K of the latter two: whether its channels are last, and
    [K·C, H, W]. Of three sides the two neighbours that are equal are height and width; where there are none, or all
    are equal, the last are channels where they are the fewest."""
    stacked, image = math.prod(shape[:-3]), shape[-3:]
    if len(image) < 3:
        return False, (1, *image)  # type: ignore[return-value]
    first, second, third = image
    if (first == second) != (second == third):
        last = first == second
    else:
        last = third <= _MOST_CHANNELS and third < min(first, second)
    channels, height, width = (third, first, second) if last else (first, second, third)
    return last, (stacked * channels, height, width)


def _brightened_by(space: spaces.Space[Any]) -> int:
    """What pixels of a space are multiplied by, so that the greatest that they may be is near 255, as networks take it:
    a board of 0 and 1 would be all but black."""
    return max(1, 255 // max(1, int(space.high.max()))) if is_image(space) and isinstance(space, spaces.Box) else 1


def _write_box(space: spaces.Space[Any], array: np.ndarray, row: np.ndarray) -> None:
    """Put what a Box holds into `row`: an image as [C, H, W], the rest flat; uint8 that are no image as 0…1."""
    if is_image(space) and not isinstance(space, CodedBox):
        if _channels_first(array.shape)[0]:
            array = np.moveaxis(array, -1, -3)
        if (factor := _brightened_by(space)) > 1:
            array = np.minimum(array, 255 // factor) * np.uint8(factor)
        row[...] = array.reshape(row.shape)
    elif space.dtype == np.uint8 and row.dtype != np.uint8 and isinstance(space, spaces.Box):
        np.divide(array.reshape(row.shape), np.maximum(space.high, 1).reshape(row.shape), out=row, dtype=row.dtype)
    else:
        row[...] = array.reshape(row.shape)


def _parts(env_id: str, space: spaces.Space[Any], where: str) -> tuple[list[tuple[int, int, int]], int]:
    """The images [C, H, W] of a space's leaves, in order, and how many numbers the others are. Raises UserError."""
    if where != "observation" and is_image(space):
        return [_channels_first(space.shape or ())[1]], 0
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return [], spaces.flatdim(space)
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise UserError(
            f"{env_id}: {where} of type {type(space).__name__} is not supported; Box, Discrete, MultiDiscrete, "
            "MultiBinary and Dict or Tuple of these are"
        )
    parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    images: list[tuple[int, int, int]] = []
    numbers = 0
    for key, part in parts:
        more_images, more_numbers = _parts(env_id, part, f"{where}[{key!r}]")
        images, numbers = images + more_images, numbers + more_numbers
    return images, numbers


def _check_array(array: np.ndarray, shape: tuple[int, ...], dtype: Any, where: str) -> None:
    """Raise ValueError where an array is not what a Box of this shape and dtype says; `where` names it."""
    if array.shape != shape:
        raise ValueError(f"{where} of shape {array.shape} instead of {shape}")
    if array.dtype == dtype:
        return
    if not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise ValueError(f"{where} of dtype {array.dtype} instead of {dtype}")
    if np.dtype(dtype).kind in "iu" and not np.array_equal(array.astype(dtype), array):  # a float rounds
        raise ValueError(f"{where} with numbers that {dtype} cannot hold")


def _write(
    space: spaces.Space[Any], value: Any, row: np.ndarray, begin: int, where: str, pictures: Iterator[np.ndarray]
) -> int:
    """Put `value` flat into `row` [D] from `begin` on; where it ends. Its images go into the next `pictures`.

    Raises ValueError naming what does not fit.

    `spaces.flatten` gives the same numbers in the same order, but looks at nothing (a part of one number is spread over
    a place for five, and -1 is the last of the Discrete's numbers) and takes 10 to 30 times as long.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, (dict, Mapping)):
            raise ValueError(f"{where} is a {type(value).__name__} and no dictionary")
        for key, part in space.spaces.items():
            if key not in value:
                raise ValueError(f"{where} without {key!r}")
            begin = _write(part, value[key], row, begin, f"{where}[{key!r}]", pictures)
        return begin
    if isinstance(space, spaces.Tuple):
        if isinstance(value, (dict, Mapping)):
            raise ValueError(f"{where} is a {type(value).__name__} and no tuple")
        if len(value) != len(space.spaces):
            raise ValueError(f"{where} of {len(value)} parts instead of {len(space.spaces)}")
        for index, part in enumerate(space.spaces):
            begin = _write(part, value[index], row, begin, f"{where}[{index}]", pictures)
        return begin
    if isinstance(space, spaces.Discrete) and isinstance(value, (int, np.integer)):  # at once: it is most frequent
        place, end = int(value) - int(space.start), begin + int(space.n)
        if not begin <= begin + place < end:
            raise ValueError(f"{where} is {value}, which is not in {space}")
        row[begin:end] = 0.0
        row[begin + place] = 1.0
        return end
    array = np.asarray(value)
    dtype = array.dtype if isinstance(space, spaces.MultiBinary) else space.dtype
    _check_array(array, space.shape or (), dtype, where)
    if is_image(space):
        _write_box(space, array, next(pictures))
        return begin
    if isinstance(space, spaces.Box):
        end = begin + array.size
        _write_box(space, array, row[begin:end])
        return end
    flat: Any
    if not isinstance(space, spaces.MultiBinary):
        array = array.astype(space.dtype, copy=False)  # nothing is lost, and `contains` takes no other
    if space.contains(array):
        flat = spaces.flatten(space, array)
    else:
        raise ValueError(f"{where} is {array.tolist()}, which is not in {space}")
    row[begin : begin + len(flat)] = flat
    return begin + len(flat)
