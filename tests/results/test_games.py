"""The aggregate of seven games, by hand."""

import numpy as np
import pytest
from games.beside_ppo import beside
from games.measure import HERE, over_games


def test_the_statistic_over_games_is_of_all_their_runs_and_its_interval_is_of_seeds_within_games():
    # each game's seeds agree, so whatever is drawn anew within games is the same; drawn from all runs it would not be
    agreed = over_games([[0.0, 0.0], [1.0, 1.0], [8.0, 8.0]], np.mean)
    assert (agreed.centre, agreed.low, agreed.high) == (3, 3, 3)
    # a resample of the first game has a mean of 0, 5 or 10, each end with probability 1/4 > 2.5 %
    differing = over_games([[0.0, 10.0], [4.0, 4.0]], np.mean)
    assert (differing.low, differing.high) == (2, 7)
    assert over_games([[0, 1, 2, 3], [4, 5, 6, 100]]).centre == (2 + 3 + 4 + 5) / 4
    with pytest.raises(ValueError, match="every game needs two"):
        over_games([[1.0, 2.0], [3.0]])


def test_the_page_says_how_probably_the_preset_beats_ppo_in_what_is_committed():
    found = beside()
    assert set(found.preset) == set(found.ppo)
    assert f"with probability {found.probability:.2f} " in (HERE / "README.md").read_text(encoding="utf-8")
