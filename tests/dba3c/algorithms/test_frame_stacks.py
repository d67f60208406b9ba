"""Stacks built while frames arrive, and rebuilt later from stored frames."""

from __future__ import annotations

import numpy as np
import pytest

from dba3c.algorithms.frame_stacks import FrameStacks, Padding, rebuild_stacks


def numbers(stack: np.ndarray) -> list[int]:
    return stack.reshape(-1).tolist()


def frames(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8).reshape(-1, 1, 1)


@pytest.mark.parametrize(
    ("padding", "first", "second"), [("zero", [0, 0, 7], [0, 7, 8]), ("repeat", [7, 7, 7], [7, 7, 8])]
)
def test_an_episode_begins_with_padding(padding: Padding, first: list[int], second: list[int]) -> None:
    stacks, one = FrameStacks(2, 3, (1, 1), padding), np.array([1])
    stacks.push(one, frames(99), np.array([True]))
    assert numbers(stacks.push(one, frames(7), np.array([True]))) == first
    assert numbers(stacks.push(one, frames(8), np.array([False]))) == second


def test_environments_have_stacks_of_their_own_in_any_order() -> None:
    stacks = FrameStacks(3, 2, (1, 1))
    stacks.push(np.array([0, 2]), frames(1, 2), np.array([True, True]))
    pushed = stacks.push(np.array([2, 0]), frames(4, 3), np.array([False, False]))
    assert [numbers(stack) for stack in pushed] == [[2, 4], [1, 3]]


def test_a_pushed_stack_is_the_callers_to_keep() -> None:
    stacks, one = FrameStacks(1, 2, (1, 1)), np.array([0])
    kept = stacks.push(one, frames(1), np.array([True]))
    stacks.push(one, frames(2), np.array([False]))
    assert numbers(kept) == [0, 1]


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
