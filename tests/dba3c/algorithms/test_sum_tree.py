"""The sum tree against plain cumulative sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dba3c.algorithms.sequence_replay import SumTree


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_find_is_searching_the_cumulative_sums(weights: list[float], seed: int) -> None:
    if sum(weights) == 0:
        weights[0] = 1.0
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights))
    assert tree.total == pytest.approx(sum(weights))
    cumulative = np.cumsum(weights)
    sums = np.random.default_rng(seed).random(20) * cumulative[-1]
    found = tree.find(sums)
    expected = np.searchsorted(cumulative, sums, side="right")
    close = np.abs(cumulative[np.minimum(expected, len(weights) - 1)] - sums) < 1e-6  # rounding may pick a neighbour
    assert np.all((found == expected) | close)
    assert np.all(tree.weights(found) > 0)


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 10)), max_size=60))
def test_sums_do_not_drift_under_updates(updates: list[tuple[int, float]]) -> None:
    tree, weights = SumTree(13), np.zeros(13)
    for leaf, weight in updates:
        tree.set(np.array([leaf]), weight)
        weights[leaf] = weight
    assert tree.total == pytest.approx(weights.sum(), abs=1e-9)
    np.testing.assert_array_equal(tree.weights(np.arange(13)), weights)


def test_a_leaf_named_twice_keeps_the_last_weight() -> None:
    tree = SumTree(4)
    tree.set(np.array([2, 2]), np.array([5.0, 1.0]))
    assert tree.total == 1.0


def test_rounding_never_finds_a_leaf_without_weight() -> None:
    tree = SumTree(5)
    tree.set(np.array([1]), 0.1)
    assert tree.find(np.array([0.0, 0.1, 0.2])).tolist() == [1, 1, 1]


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weights must be finite"):
        SumTree(2).set(np.array([0]), weight)


def test_an_empty_tree_says_so() -> None:
    with pytest.raises(ValueError, match="no weight"):
        SumTree(2).find(np.array([0.0]))
