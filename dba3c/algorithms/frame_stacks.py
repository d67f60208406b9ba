"""Stacks of the last K frames, rebuilt from single frames that are stored once.

Legend: K frames of a stack, T steps, B sequences, frame shape [*F].

Oldest first. Where a game begins, or a link to its environment, a stack is not made of the frames stored before it:
what lay behind the newest frame then (zeros, copies of it, what was really seen) is kept beside the frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Beginning(NamedTuple):
    """A stack that is not made of the frames before it."""

    sequence: int
    """b."""
    time: int
    """Of its newest frame, in [0, K−1+T)."""
    older: np.ndarray
    """[K−1, *F]: what lies behind that frame, oldest first."""


def rebuild_stacks(frames: np.ndarray, depth: int, beginnings: Iterable[Beginning]) -> np.ndarray:
    """Stacks [T, B, K, *F] of the last T of frames [B, K−1+T, *F]; a sequence's beginnings come in order of time.

    What the frames before a beginning hold does not matter to the stacks from there on.
    """
    batch, length = frames.shape[:2]
    wanted = np.arange(depth - 1, length)[:, None] + np.arange(1 - depth, 1)  # [T, K]
    stacks = frames[np.arange(batch)[None, :, None], wanted[:, None]]
    for sequence, time, older in beginnings:
        for age in range(depth - 1):
            row = time + age - (depth - 1)
            if 0 <= row < len(stacks):
                stacks[row, sequence, : depth - 1 - age] = older[age:]
    return stacks


class OlderFrames:
    """What lay behind the frames that begin something, by their places in the rings of environments.

    Args:
        depth: K.
        frame_shape, dtype: of a frame.
    """

    def __init__(self, depth: int, frame_shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._zeros = np.zeros((depth - 1, *frame_shape), dtype)
        self._older: dict[tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        """Places that something is kept for."""
        return len(self._older)

    def keep(self, environments: np.ndarray, slots: np.ndarray, older: np.ndarray) -> None:
        """Remember older [n, K−1, *F], not copied, of the frames at these places [n]."""
        for environment, slot, frames in zip(environments.tolist(), slots.tolist(), older, strict=True):
            self._older[environment, slot] = frames

    def forget(self, environments: np.ndarray, slots: np.ndarray) -> None:
        """The frames at these places [n] are about to be overwritten."""
        for place in zip(environments.tolist(), slots.tolist(), strict=True):
            self._older.pop(place, None)

    def of(self, environment: int, slot: int) -> np.ndarray:
        """[K−1, *F]; zeros where nothing was said."""
        return self._older.get((environment, slot), self._zeros)
