"""Every statistic against numbers computed by hand; censored times against the definition of their median."""

import itertools
import math

import numpy as np
import pytest

from dba3c.config import RunConfig, TrainConfig
from dba3c.evaluation.evaluator import stop_when_solved
from dba3c.runs.folder import RunFolder
from dba3c.studies.statistics import (
    estimate,
    human_normalised,
    performance_profile,
    probability_of_improvement,
    score_text,
    spread,
    summarise,
    time_to_goal,
)

NEVER = math.inf

# -- scores of full games ----------------------------------------------------------------------------------------------


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


def test_no_digit_of_a_large_score_is_lost_where_it_is_printed(tmp_path):
    large = summarise([14_903.0, 14_905.0, 14_907.5])
    assert str(large).startswith("mean 14,905, median 14,905, IQM 14,905 [14,903, 14,9")
    assert str(large).endswith("max 14,908 over 3 full games")
    with RunFolder.create(tmp_path / "run", {}) as run:
        config = TrainConfig(run=RunConfig(stop_score=14_900.0, stop_games=1))
        stop_when_solved(summarise([14_903.25]), 10, run, config, lambda line: None)
    why = "evaluation of step 10: mean 14,903.25 of 1 full games reached the stop score 14,900"
    assert run.stop_reason() == why
    assert list(map(score_text, (0.87123, 300.5, -1234.5, 1_234_567.0))) == ["0.8712", "300.5", "-1,234", "1,234,567"]


@pytest.mark.parametrize("value", [0.1, 0.18, 0.7])
@pytest.mark.parametrize("seeds", [3, 5, 7])
def test_the_spread_of_equal_seeds_holds_their_centre_whatever_it_is_rounded_to(value, seeds):
    found = estimate([value] * seeds)
    assert found.low <= found.centre <= found.high and found.centre == pytest.approx(value)


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_below_five_seeds_the_spread_is_their_own_range_and_says_so():
    few = estimate([1.0, 5.0, 3.0])
    assert (few.centre, few.low, few.high) == (3.0, 1.0, 5.0)
    assert str(few) == "3 [1 to 5]"
    assert str(estimate([2.0])) == "2"


def test_from_five_seeds_on_the_spread_is_the_percentile_bootstrap_over_seeds():
    values = [1.0, 2.0, 6.0, 7.0, 30.0]
    iqms = [np.mean(sorted(chosen)[1:4]) for chosen in itertools.product(values, repeat=5)]
    many = estimate(values)
    assert many.centre == 5.0 and " to " not in str(many)
    # the percentiles over all 3,125 resamples, of which random ones are drawn
    assert (many.low, many.high) == pytest.approx(tuple(np.percentile(iqms, [2.5, 97.5])), rel=0.05)


def test_a_seed_without_a_value_is_counted_beside_those_that_have_one():
    partly = estimate([4.0, math.nan, 6.0])
    assert partly.values == (4.0, 6.0) and partly.runs == 3
    assert str(partly) == "5 [4 to 6], 2 of 3 runs"
    assert estimate([math.nan]) is None


def test_a_spread_is_taken_along_its_first_axis():
    low, high = spread(np.array([[0.0, 10.0], [1.0, 30.0]]), np.mean)
    assert low.tolist() == [0.0, 10.0] and high.tolist() == [1.0, 30.0]


# -- several games -----------------------------------------------------------------------------------------------------


def test_a_random_score_is_0_a_persons_is_1_and_of_other_environments_nothing_is_known():
    assert human_normalised("ALE/Pong-v5", -20.7) == 0
    assert human_normalised("ALE/Pong-v5", 14.6) == 1
    assert human_normalised("ALE/Breakout-v5", 59.3) == pytest.approx(2)
    assert human_normalised("CartPole-v1", 500) is None


def test_a_profile_is_the_share_of_runs_above_each_threshold():
    assert performance_profile([[0.0, 1.0], [2.0, 3.0]], [-1, 0, 1.5, 3]).tolist() == [1, 0.75, 0.5, 0]


def test_a_profile_counts_games_alike_however_many_seeds_they_have():
    assert performance_profile([[1.0] * 5, [0.0] * 2], [0.5]).tolist() == [0.5]


def test_the_probability_of_improvement_counts_pairs_within_games_and_ties_as_half():
    # game 1: of four pairs 1 beats 0, 1 ties 1, 3 beats both: 3.5 of 4; game 2: none of ours beats 9
    assert probability_of_improvement([[1, 3], [5, 6]], [[0, 1], [9]]) == pytest.approx((3.5 / 4 + 0) / 2)


# -- time to a goal ----------------------------------------------------------------------------------------------------


def test_one_seed_of_five_that_reached_the_goal_gives_no_median_but_the_budget():
    found = time_to_goal([2.0, 4.0, 4.0, 4.0, 4.0], [True, False, False, False, False])
    assert found.median == NEVER and found.told == "1 of 5 reached"
    assert str(found) == "> 4, 1 of 5 reached"


def test_half_of_the_seeds_are_not_enough_for_a_median():
    found = time_to_goal([1.0, 2.0, 9.0, 9.0], [True, True, False, False])
    assert str(found) == "> 5.5, 2 of 4 reached"
    soon_after = time_to_goal([1.0, 2.0, 9.1, 9.1], [True] * 4)
    assert found.budget < soon_after.median < 9


def test_more_than_half_give_the_median_in_which_the_others_count_as_later():
    found = time_to_goal([1.0, 9.0, 3.0, 2.0, 9.0], [True, False, True, True, False])
    assert found.median == 3.0 and (found.low, found.high) == (1.0, NEVER)
    assert str(found).startswith("3 [1") and str(found).endswith("> 9], 3 of 5 reached")


def test_without_censoring_it_is_the_ordinary_median():
    assert time_to_goal([4.0, 1.0, 2.0, 8.0], [True] * 4).median == 3.0
    found = time_to_goal([4.0, 1.0, 2.0], [True] * 3)
    assert (found.median, found.low, found.high) == (2.0, 1.0, 4.0)
    assert str(found) == "2 [1 to 4], 3 of 3 reached"


def test_a_seed_that_was_lost_early_counts_for_as_long_as_it_was_seen():
    # Kaplan-Meier by hand: 1 of 5 at 1 h leaves 4/5, one is lost at 2 h, 1 of 3 at 3 h leaves 8/15, 1 of 2 at 5 h 4/15
    assert time_to_goal([1.0, 2.0, 3.0, 5.0, 7.0], [True, False, True, True, False]).median == 5.0
    # had all been seen to the end it would have been the third of five, too; with none lost, the third is at 3 h
    assert time_to_goal([1.0, 2.0, 3.0, 5.0, 7.0], [True] * 5).median == 3.0


def test_the_interval_of_ten_seeds_honours_those_that_did_not_reach_it():
    times, reached = [10.0, 11, 12, 13, 14, 15, 16, 50, 50, 50], [True] * 7 + [False] * 3
    found = time_to_goal(times, reached)
    assert found.median == 14.5 and found.low < 14.5 < found.high and found.high == NEVER
    # the seven alone would say 13 and end before 16
    assert np.median(times[:7]) == 13.0


def test_no_seed_at_all_that_reached_it_is_said():
    assert str(time_to_goal([3.0, 3.0], [False, False])) == "> 3, 0 of 2 reached"


def test_times_can_be_told_in_another_unit():
    found = time_to_goal([1.0, 2.0, 3.0], [True, True, False]).times(60)
    assert str(found) == "120 [60 to > 180], 2 of 3 reached"
