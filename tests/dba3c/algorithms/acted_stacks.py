"""The slow model of frame stacks: each environment's present stack, pushed frame by frame as while acting."""

from __future__ import annotations

import numpy as np


class FrameStacks:
    """The present stack of each of N environments."""

    def __init__(self, environments: int, depth: int, frame_shape: tuple[int, ...]) -> None:
        self._stacks = np.zeros((environments, depth, *frame_shape), dtype=np.uint8)

    def push(self, environments: np.ndarray, frames: np.ndarray, first: np.ndarray, older: np.ndarray) -> np.ndarray:
        """Stacks [n, K, *F] uint8 of environments [n] int after their new frames [n, *F].

        Those of the R environments marked first [n] bool have older [R, K−1, *F] behind the new frame.
        """
        stacks = self._stacks[environments]
        stacks[:, :-1] = stacks[:, 1:]
        stacks[:, -1] = frames
        stacks[first, :-1] = older
        self._stacks[environments] = stacks
        return stacks
