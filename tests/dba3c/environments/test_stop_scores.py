"""Scores at which a game counts as solved."""

import pytest

from dba3c.environments import EnvironmentConfig
from dba3c.environments.stop_scores import ATARI_STOP_SCORES, stop_score


@pytest.mark.parametrize(
    ("env_id", "score"),
    [
        ("ALE/Breakout-v5", 300.0),
        ("ALE/Pong-v5", 10.0),
        ("ALE/Riverraid-v5", 4000.0),
        ("ALE/Seaquest-v5", 1830.0),
        ("ALE/SpaceInvaders-v5", 700.0),
        ("CartPole-v1", 475.0),
        ("vizdoom/basic", 75.0),
        ("ALE/Asterix-v5", None),
        ("my_game:make_env", None),
    ],
)
def test_a_game_has_its_stop_score_or_none(env_id, score):
    assert stop_score(env_id) == score


def test_the_seven_games_exist():
    assert len(ATARI_STOP_SCORES) == 7
    assert all(EnvironmentConfig(env_id=env_id).family == "atari" for env_id in ATARI_STOP_SCORES)
