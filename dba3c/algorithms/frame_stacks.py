"""Stacks of the last K frames, rebuilt from single frames that are stored once.

Legend: K frames of a stack, T steps, B sequences, frame shape [*F].

Oldest first. Before the first frame of an episode a stack holds zeros, as ale-py's vector environment has it, or that
first frame repeated, as Gymnasium's FrameStackObservation has it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Padding = Literal["zero", "repeat"]


def rebuild_stacks(frames: np.ndarray, first: np.ndarray, depth: int, padding: Padding = "zero") -> np.ndarray:
    """Stacks [T, B, K, *F] of the last T of frames [B, K−1+T, *F], where first [B, K−1+T] bool marks episode starts.

    The K−1 frames before are only looked at where no episode starts in between.
    """
    batch, length = first.shape
    times = np.arange(length)
    starts = np.maximum.accumulate(np.where(first, times, -1), axis=1)[:, depth - 1 :]  # [B, T] newest start so far
    wanted = times[depth - 1 :, None] + np.arange(1 - depth, 1)  # [T, K]
    index = np.maximum(wanted, starts[..., None])  # [B, T, K]; -1 where no start is known
    stacks = frames[np.arange(batch)[None, :, None], index.swapaxes(0, 1)]
    if padding == "zero":
        stacks[(wanted[:, None] < starts.T[..., None])] = 0
    return stacks
