"""Stacks rebuilt from stored frames are those that were acted on."""

from __future__ import annotations

import numpy as np
import pytest

from dba3c.algorithms.frame_stacks import Padding, rebuild_stacks
from tests.dba3c.algorithms.acted_stacks import FrameStacks


@pytest.mark.parametrize(
    ("padding", "expected"),
    [("zero", [[1, 2, 3], [0, 0, 4], [0, 4, 5]]), ("repeat", [[1, 2, 3], [4, 4, 4], [4, 4, 5]])],
)
def test_an_episode_begins_with_padding(padding: Padding, expected: list[list[int]]) -> None:
    frames = np.array([[1, 2, 3, 4, 5]], dtype=np.uint8)
    first = np.array([[True, False, False, True, False]])
    assert rebuild_stacks(frames, first, 3, padding)[:, 0].tolist() == expected


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("depth", [2, 4])
def test_rebuilt_stacks_are_the_ones_that_were_acted_on(padding: Padding, depth: int) -> None:
    rng = np.random.default_rng(0)
    length, batch = 30, 5
    stored = rng.integers(1, 255, (batch, length, 2, 2), dtype=np.uint8)
    first = rng.random((batch, length)) < 0.2
    first[:, 0] = True
    online = FrameStacks(batch, depth, (2, 2), padding)
    acted = [online.push(np.arange(batch), stored[:, t], first[:, t]) for t in range(length)]
    rebuilt = rebuild_stacks(stored, first, depth, padding)
    np.testing.assert_array_equal(rebuilt, acted[depth - 1 :])
