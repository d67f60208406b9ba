"""Statistics of scores against hand-computed ones."""

import math

import pytest

from dba3c.score_statistics import summarise


def test_statistics_of_eight_scores_are_those_computed_by_hand():
    summary = summarise([10, 0, 2, 100, 4, 3, 1, 8])
    # sorted 0 1 | 2 3 4 8 | 10 100: two of eight are cut at each end
    assert summary.games == 8
    assert summary.mean == 128 / 8
    assert summary.median == 3.5
    assert summary.iqm == 17 / 4
    assert (summary.min, summary.max) == (0, 100)
    assert summary.deviation == pytest.approx(math.sqrt(sum((x - 16) ** 2 for x in (10, 0, 2, 100, 4, 3, 1, 8)) / 8))


def test_the_interval_surrounds_the_iqm_and_is_the_same_each_time():
    scores = [float(x % 37) for x in range(0, 500, 10)]
    summary = summarise(scores)
    low, high = summary.interval_95
    assert low < summary.iqm < high
    assert summarise(scores).interval_95 == (low, high)


def test_the_interval_of_two_values_is_known():
    # with two games nothing is cut: the mean of a resample is 0, 5 or 10, each end with probability 1/4 > 2.5 %
    assert summarise([0, 10]).interval_95 == (0, 10)


def test_equal_scores_have_a_point_for_an_interval_and_one_score_has_none():
    assert summarise([7.0] * 5).interval_95 == (7.0, 7.0)
    single = summarise([7.0])
    assert single.interval_95 is None and single.iqm == 7.0
    assert str(single) == "mean 7, median 7, IQM 7, max 7 over 1 full game"


def test_no_scores_are_refused():
    with pytest.raises(ValueError, match="no scores"):
        summarise([])
