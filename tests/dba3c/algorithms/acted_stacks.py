"""The slow model of frame stacks: each environment's present stack, pushed frame by frame as while acting."""

from __future__ import annotations

import numpy as np

from dba3c.algorithms.frame_stacks import Padding


class FrameStacks:
    """The present stack of each of N environments."""

    def __init__(self, environments: int, depth: int, frame_shape: tuple[int, ...], padding: Padding = "zero") -> None:
        self.padding = padding
        self._stacks = np.zeros((environments, depth, *frame_shape), dtype=np.uint8)

    def push(self, environments: np.ndarray, frames: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Stacks [n, K, *F] uint8 of environments [n] int after their new frames [n, *F]; first [n] bool resets."""
        stacks = self._stacks[environments]
        stacks[:, :-1] = stacks[:, 1:]
        stacks[:, -1] = frames
        if first.any():
            stacks[first, :-1] = frames[first][:, None] if self.padding == "repeat" else 0
        self._stacks[environments] = stacks
        return stacks
