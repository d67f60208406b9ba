"""Where episodes begin, told from what the environments themselves say of their steps."""

from __future__ import annotations

import numpy as np
import pytest

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment


@pytest.mark.parametrize("view", ["training", "evaluation"])
@pytest.mark.parametrize("fire", [False, True])
def test_in_breakout_a_lost_life_begins_nothing_even_where_the_next_step_is_a_fire_that_does_not_train(
    view: str, fire: bool
) -> None:
    config = EnvironmentConfig(env_id="ALE/Breakout-v5", episodic_life=True, fire_on_life_loss=fire)
    environments = make_vector_environment(config, 1, seed=1, view=view)
    try:
        environments.reset()
        begun = games = lives = fires = 0
        resets = lost = False
        random = np.random.default_rng(0)
        while begun < 2:
            step = environments.step(random.integers(4, size=1))
            assert bool(step.first[0]) == resets
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
