"""Which observations and actions training understands, and how an environment's own are turned into them.

| the environment's observation                                   | what the network gets                            |
|------------------------------------------------------------------|--------------------------------------------------|
| Box uint8 [H, W], [H, W, C] or [C, H, W], C in 1, 3, 4 or a stack | uint8 [C, H, W]                                  |
| Box of numbers, any other shape                                   | float32 [D], flattened                           |
| Discrete, MultiDiscrete, MultiBinary                              | float32 [D], one-hot                             |
| Dict or Tuple of the non-image ones                               | float32 [D], concatenated in the space's order   |

Actions: Discrete, MultiDiscrete (one-dimensional) and Box (float, one-dimensional, clipped to its bounds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from dba3c.errors import UserError

BROKEN_NUMBERS = "observation with NaN or infinite numbers"
_LARGEST_CHANNEL_COUNT = 64  # between a stack of frames and the side of a small image


class ObservationCodec:
    """Turns one environment's observations into what networks take: `space`, and `write(observation, row)`."""

    def __init__(self, env_id: str, original: spaces.Space[Any]) -> None:
        self.original = original
        self.space: spaces.Box
        if not is_image(original):
            _refuse_unsupported_parts(env_id, original, "observation")
        self._to_row: Callable[[np.ndarray], np.ndarray] = _flat
        self._write_parts = None if isinstance(original, spaces.Box) else writer_of(original)
        if is_image(original):
            self._use_image(original)
        else:
            self._use_vector(original)
        self._shape: Any = original.shape
        self._dtype: Any = original.dtype
        self._as_it_is = self._write_parts is None and self._shape == self.space.shape
        self._is_float = self.space.dtype == np.float32
        self._at_once = self._as_it_is and np.dtype(self._dtype).kind == self.space.dtype.kind

    def write(self, observation: Any, row: np.ndarray) -> None:
        """Put `observation` into `row` (shape and dtype of `space`). Raises ValueError saying what does not fit.

        Whether its numbers are finite is not looked at here but for a whole batch: see `may_be_broken`.
        """
        if self._write_parts is None:
            array = np.asarray(observation)
            check_array(array, self._shape, self._dtype, "observation")
            row[...] = array if self._as_it_is else self._to_row(array)
        else:
            self._write_parts(observation, row)

    def write_all(self, observations: list[Any], batch: np.ndarray) -> bool:
        """Put all into `batch` [B, ...] at once; False where one does not fit as it is: `write` says which, and why."""
        if not self._at_once:
            return False
        try:
            if {observation.shape for observation in observations} != {self._shape}:
                return False
            rows = batch.reshape(-1, *self._shape[1:])  # what np.stack does in twice the time
            np.concatenate(observations, out=rows, casting="same_kind")
        except Exception:  # whatever a stranger's observation raises, `write` raises for that one alone
            return False
        return True

    def may_be_broken(self, batch: np.ndarray) -> bool:
        """Whether observations [B, ...] may hold NaN or infinite numbers; sums of huge ones are suspected too."""
        return self._is_float and not np.isfinite(np.add.reduce(batch, axis=None))

    def check_finite(self, row: np.ndarray) -> None:
        """Raise ValueError where `row` holds NaN or infinite numbers."""
        if self._is_float and not np.isfinite(row).all():
            raise ValueError(BROKEN_NUMBERS)

    def _use_image(self, original: Any) -> None:
        shape = original.shape
        if len(shape) == 2:
            self.space, self._to_row = _image_space((1, *shape)), lambda image: image
        elif shape[2] <= _LARGEST_CHANNEL_COUNT and shape[2] < shape[0]:
            self.space = _image_space((shape[2], shape[0], shape[1]))
            self._to_row = lambda image: np.moveaxis(image, 2, 0)
        else:
            self.space, self._to_row = _image_space(shape), lambda image: image

    def _use_vector(self, original: spaces.Space[Any]) -> None:
        self.space = spaces.Box(-np.inf, np.inf, (spaces.flatdim(original),), np.float32)


class ActionCodec:
    """Turns the agent's actions into one environment's: `space`, and `read(actions, index)`."""

    def __init__(self, env_id: str, original: spaces.Space[Any]) -> None:
        self.space = original
        self._read_all: Callable[[np.ndarray], list[Any]]
        if isinstance(original, spaces.Discrete):
            start = int(original.start)
            # not as Python's int: Discrete.contains, which many environments ask, takes twice as long for one
            self._read_all = lambda actions: list((actions + start).astype(original.dtype, copy=False))
        elif isinstance(original, spaces.MultiDiscrete) and len(original.shape) == 1:
            self._read_all = lambda actions: list(actions.astype(original.dtype) + original.start)
        elif isinstance(original, spaces.Box) and len(original.shape) == 1 and original.dtype.kind == "f":
            low, high = original.low, original.high
            self._read_all = lambda actions: list(np.clip(actions, low, high).astype(original.dtype, copy=False))
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

    def read_all(self, actions: np.ndarray) -> list[Any]:
        """The actions [B, ...] one by one, as the environments take them."""
        return self._read_all(actions)

    def read(self, actions: np.ndarray, index: int) -> Any:
        """The action of environment `index`, as that environment takes it."""
        return self._read_all(actions[index : index + 1])[0]


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether a space holds uint8 images: [H, W], or three-dimensional."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def _image_space(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def _refuse_unsupported_parts(env_id: str, space: spaces.Space[Any], where: str) -> None:
    if isinstance(space, spaces.Dict):
        parts: list[tuple[Any, spaces.Space[Any]]] = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return
    else:
        raise UserError(
            f"{env_id}: {where} of type {type(space).__name__} is not supported; Box, Discrete, MultiDiscrete, "
            "MultiBinary and Dict or Tuple of these are"
        )
    for key, part in parts:
        if is_image(part):
            raise UserError(
                f"{env_id}: {where}[{key!r}] is an image {part.shape} inside a {type(space).__name__}, which is not "
                "supported: return the image alone, or flat vectors (package.module:function can wrap it)"
            )
        _refuse_unsupported_parts(env_id, part, f"{where}[{key!r}]")


Writer = Callable[[Any, np.ndarray], None]
"""(observation, row [D] float32) → nothing; raises ValueError saying which part does not fit, and why."""


def check_array(array: np.ndarray, shape: tuple[int, ...], dtype: Any, where: str) -> None:
    """Raise ValueError where an array is not what a Box of this shape and dtype says; `where` names it."""
    if array.shape != shape:
        raise ValueError(f"{where} of shape {array.shape} instead of {shape}")
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise ValueError(f"{where} of dtype {array.dtype} instead of {dtype}")


def writer_of(space: spaces.Space[Any], where: str = "observation") -> Writer:
    """What writes observations of `space`: a Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of these."""
    if isinstance(space, spaces.Dict):
        return _dict_writer(space, where)
    if isinstance(space, spaces.Tuple):
        return _tuple_writer(space, where)
    if isinstance(space, spaces.Discrete):
        return _number_writer(space, where)
    if isinstance(space, spaces.MultiDiscrete):
        return _numbers_writer(space, where)
    if isinstance(space, spaces.MultiBinary):
        return _binary_writer(space, where)
    if isinstance(space, spaces.Box):
        return _box_writer(space, where)
    raise TypeError(f"{where} of type {type(space).__name__} has no writer")


def _box_writer(space: spaces.Box, where: str) -> Writer:
    shape, dtype = space.shape, space.dtype

    def write(value: Any, row: np.ndarray) -> None:
        array = np.asarray(value)
        check_array(array, shape, dtype, where)
        row[:] = array.reshape(-1)

    return write


def _binary_writer(space: spaces.MultiBinary, where: str) -> Writer:
    shape = space.shape

    def write(value: Any, row: np.ndarray) -> None:
        array = np.asarray(value)
        check_array(array, shape, array.dtype, where)
        if not ((array == 0) | (array == 1)).all():
            raise ValueError(f"{where} is {array.tolist()}, which is not all 0 and 1")
        row[:] = array.reshape(-1)

    return write


def _number_writer(space: spaces.Discrete, where: str) -> Writer:
    """One-hot."""
    count, start, dtype = int(space.n), int(space.start), space.dtype

    def write(value: Any, row: np.ndarray) -> None:
        if not isinstance(value, (int, np.integer)):  # those need no look at their shape and dtype, which takes long
            check_array(np.asarray(value), (), dtype, where)
        place = int(value) - start
        if not 0 <= place < count:
            raise ValueError(f"{where} is {value}, which is not in {space}")
        row.fill(0.0)
        row[place] = 1.0

    return write


def _numbers_writer(space: spaces.MultiDiscrete, where: str) -> Writer:
    """Each number one-hot, one behind the other."""
    shape, dtype = space.shape, space.dtype
    counts, start = space.nvec.reshape(-1).astype(np.int64), space.start.reshape(-1).astype(np.int64)
    begins = np.cumsum(counts) - counts

    def write(value: Any, row: np.ndarray) -> None:
        array = np.asarray(value)
        check_array(array, shape, dtype, where)
        places = array.reshape(-1).astype(np.int64) - start
        if not ((places >= 0) & (places < counts)).all():
            raise ValueError(f"{where} is {array.tolist()}, which is not in {space}")
        row.fill(0.0)
        row[begins + places] = 1.0

    return write


def _dict_writer(space: spaces.Dict, where: str) -> Writer:
    parts = _consecutive({key: (part, f"{where}[{key!r}]") for key, part in space.spaces.items()})

    def write(value: Any, row: np.ndarray) -> None:
        if not isinstance(value, (dict, Mapping)):
            raise ValueError(f"{where} is a {type(value).__name__} and no dictionary")
        for key, place, write_part in parts:
            if key not in value:
                raise ValueError(f"{where} without {key!r}")
            write_part(value[key], row[place])

    return write


def _tuple_writer(space: spaces.Tuple, where: str) -> Writer:
    parts = _consecutive({index: (part, f"{where}[{index}]") for index, part in enumerate(space.spaces)})

    def write(value: Any, row: np.ndarray) -> None:
        if len(value) != len(parts):
            raise ValueError(f"{where} of {len(value)} parts instead of {len(parts)}")
        for index, place, write_part in parts:
            write_part(value[index], row[place])

    return write


def _consecutive(parts: dict[Any, tuple[spaces.Space[Any], str]]) -> list[tuple[Any, slice, Writer]]:
    """(key, place in the row, writer) of each part, one behind the other."""
    placed, begin = [], 0
    for key, (part, where) in parts.items():
        size = spaces.flatdim(part)
        placed.append((key, slice(begin, begin + size), writer_of(part, where)))
        begin += size
    return placed
