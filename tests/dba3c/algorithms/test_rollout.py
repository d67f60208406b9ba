"""Where episodes begin, told from what the environments themselves say of their steps."""

from __future__ import annotations

import numpy as np
import pytest

from dba3c.algorithms.rollout import EpisodeStarts
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import Episode

GAME = [Episode(score=1.0, length_steps=2, terminated=True, truncated=False, environment=1)]
NO_GAME: list[Episode] = []


def test_an_episode_begins_with_the_reset_after_a_game_and_only_there() -> None:
    starts, nothing = EpisodeStarts(3), np.zeros(3, bool)
    firsts = [starts(nothing, episodes).tolist() for episodes in (NO_GAME, GAME, NO_GAME, NO_GAME)]
    assert firsts == [[False] * 3, [False] * 3, [False, True, False], [False] * 3]


def test_an_environment_that_broke_begins_again_with_its_reset_though_it_reports_no_game() -> None:
    starts, nothing = EpisodeStarts(2), np.zeros(2, bool)
    broke = np.array([True, False])
    assert [starts(truncated, NO_GAME).tolist() for truncated in (broke, nothing, nothing)] == [
        [False, False], [True, False], [False, False],
    ]  # fmt: skip


def test_an_environment_may_use_its_array_of_ends_again() -> None:
    starts, truncated = EpisodeStarts(1), np.array([True])
    starts(truncated, NO_GAME)
    truncated[0] = False
    assert starts(truncated, NO_GAME).tolist() == [True]


@pytest.mark.parametrize("view", ["training", "evaluation"])
@pytest.mark.parametrize("fire", [False, True])
def test_in_breakout_a_lost_life_begins_nothing_even_where_the_next_step_is_a_fire_that_does_not_train(
    view: str, fire: bool
) -> None:
    config = EnvironmentConfig(env_id="ALE/Breakout-v5", episodic_life=True, fire_on_life_loss=fire)
    environments = make_vector_environment(config, 1, seed=1, view=view)
    try:
        environments.reset(1)
        starts, begun, games, lives, fires = EpisodeStarts(1), 0, 0, 0, 0
        resets = lost = False
        random = np.random.default_rng(0)
        while begun < 2:
            step = environments.step(random.integers(4, size=1))
            assert bool(starts(step.truncated, step.episodes)[0]) == resets
            begun += resets
            fires += lost and not step.valid[0]
            games += len(step.episodes)
            resets, lost = bool(step.episodes), bool(step.terminated[0]) and not step.episodes
            lives += lost
        assert games == 2
        assert lives >= 8 if view == "training" else lives == 0
        assert fires == (lives if view == "training" and fire else 0)
    finally:
        environments.close()
