"""Single frames, each stored once, and the stacks that are rebuilt from them: while acting, in unrolls, in a replay.

Legend: R rows in time order, B environments, W of them whose stack begins anew at a row, K frames in a stack, C
channels of a frame.

Where a game begins, or a link to its environment, a stack is not made of the frames before it: what lay behind the
newest frame then (zeros, copies of it, what was really seen) is kept beside the frames.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Whole(NamedTuple):
    """Environments whose stack at one row is not made of the rows before it."""

    row: int
    environments: np.ndarray  # int64 [W]
    older: np.ndarray  # [W, K − 1, C, ...]: what lies behind the newest frame, oldest first


class FrameRows:
    """Frames [R, B, C, ...] of consecutive steps, and where stacks began anew.

    frames: may be a view with strides; the owner writes to it, row by row.
    """

    def __init__(self, frames: np.ndarray, frame_stack: int) -> None:
        self.frames = frames
        self.frame_stack = frame_stack
        self.wholes: list[Whole] = []

    def mark_whole(self, whole: Whole) -> None:
        """Stacks that begin at a row; rows must come in order."""
        if self.frame_stack > 1 and len(whole.environments):
            self.wholes.append(whole)

    def stacks_into(self, row: int, out: np.ndarray) -> None:
        """The observations of one row, oldest frame first, into ``out`` [B, K·C, ...].

        The K − 1 rows before ``row`` must exist; what they hold does not matter where a whole stack covers it.
        """
        depth = self.frame_stack
        if depth == 1:
            np.copyto(out, self.frames[row])
            return
        parts = out.reshape(len(out), depth, *self.frames.shape[2:])  # a view: out is contiguous in its last dimensions
        for k in range(depth):
            np.copyto(parts[:, k], self.frames[row - depth + 1 + k])
        for whole in self.wholes:
            age = row - whole.row
            if 0 <= age < depth - 1:
                parts[whole.environments, : depth - 1 - age] = whole.older[:, age:]

    def carry_over(self, to: FrameRows, shift: int) -> None:
        """Take along to ``to``, where this one's row r is r − ``shift``, the whole stacks that still matter there."""
        for whole in self.wholes:
            if whole.row - shift >= 0:
                to.mark_whole(whole._replace(row=whole.row - shift))
