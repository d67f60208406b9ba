"""Stacks rebuilt from stored frames are those that were acted on."""

from __future__ import annotations

import numpy as np
import pytest

from dba3c.algorithms.sequence_replay import Beginning, OlderFrames, rebuild_stacks
from tests.dba3c.algorithms.acted_stacks import FrameStacks


def test_an_episode_begins_with_what_lay_behind_its_first_frame() -> None:
    frames = np.array([[1, 2, 3, 4, 5, 6]], dtype=np.uint8)
    begins = Beginning(sequence=0, time=3, older=np.array([70, 80]))
    assert rebuild_stacks(frames, 3, [begins])[:, 0].tolist() == [[1, 2, 3], [70, 80, 4], [80, 4, 5], [4, 5, 6]]


def test_an_episode_that_began_before_the_first_stack_still_shows_in_it() -> None:
    frames = np.array([[1, 2, 3, 4]], dtype=np.uint8)
    begins = Beginning(sequence=0, time=1, older=np.array([70, 80]))
    assert rebuild_stacks(frames, 3, [begins])[:, 0].tolist() == [[80, 2, 3], [2, 3, 4]]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_rebuilt_stacks_are_the_ones_that_were_acted_on(depth: int) -> None:
    rng = np.random.default_rng(0)
    length, batch = 30, 5
    stored = rng.integers(1, 255, (batch, length, 2, 2), dtype=np.uint8)
    first = rng.random((batch, length)) < 0.2
    first[:, 0] = True
    older = rng.integers(1, 255, (batch, length, depth - 1, 2, 2), dtype=np.uint8)
    online, everybody = FrameStacks(batch, depth, (2, 2)), np.arange(batch)
    acted = [online.push(everybody, stored[:, t], first[:, t], older[first[:, t], t]) for t in range(length)]
    rebuilt = rebuild_stacks(stored, depth, [Beginning(b, t, older[b, t]) for b, t in np.argwhere(first)])
    np.testing.assert_array_equal(rebuilt, acted[depth - 1 :])


def test_older_frames_are_zeros_where_nothing_was_said_and_after_they_were_forgotten() -> None:
    kept, said = OlderFrames(3, (1,), np.dtype(np.uint8)), np.array([[[7], [8]], [[5], [6]]], np.uint8)
    kept.keep(np.array([0, 2]), np.array([4, 4]), said)
    assert [kept.of(e, 4).ravel().tolist() for e in range(3)] == [[7, 8], [0, 0], [5, 6]]
    kept.forget(np.array([1, 2]), np.array([4, 4]))
    assert kept.of(2, 4).ravel().tolist() == [0, 0]
    assert len(kept) == 1
