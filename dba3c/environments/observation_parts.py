"""Writers that put an observation of any supported space into one flat float32 row, and refuse one that does not fit.

`gymnasium.spaces.flatten` gives the same numbers in the same order, but looks at nothing: a part of one number is
spread over a place for five, and -1 is the last of the Discrete's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

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
