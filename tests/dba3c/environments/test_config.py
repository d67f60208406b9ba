"""EnvironmentConfig: named protocols, stop scores, and one line for every option that does not fit."""

from dataclasses import replace

import ale_py
import gymnasium
import pytest

from dba3c.environments.atari_protocols import protocol_name, with_protocol
from dba3c.environments.config import EnvironmentConfig, atari_games, stop_score
from dba3c.errors import UserError


def test_training_options_are_not_part_of_the_protocol():
    config = replace(with_protocol(EnvironmentConfig(), "v5"), episodic_life=True, clip_reward=False, envs_per_worker=7)
    assert protocol_name(config) == "v5"


def test_a_changed_protocol_names_what_changed():
    config = replace(with_protocol(EnvironmentConfig(), "v4-no-sticky"), full_action_space=True)
    assert protocol_name(config) == "v4-no-sticky but full_action_space=True"


def test_the_default_is_the_v5_protocol():
    assert protocol_name(EnvironmentConfig()) == "v5"
    assert EnvironmentConfig().frames_per_step == 4
    assert EnvironmentConfig().clips_reward


def test_other_families_neither_clip_rewards_nor_skip_frames():
    config = EnvironmentConfig(env_id="CartPole-v1")
    assert not config.clips_reward
    assert config.frames_per_step == 1
    assert protocol_name(config) == "CartPole-v1 as registered"


def test_a_frame_skip_range_read_from_json_is_a_tuple():
    assert EnvironmentConfig(frame_skip=[2, 4]) == EnvironmentConfig(frame_skip=(2, 4))
    assert EnvironmentConfig(frame_skip=(2, 4)).frames_per_step == 3


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"envs_per_worker": 0}, "envs_per_worker must be at least 1, got 0"),
        ({"noop_max": -1}, "noop_max must be at least 0, got -1"),
        ({"repeat_action_probability": 1.0}, "repeat_action_probability must be at least 0 and less than 1, got 1.0"),
        ({"frame_skip": 0}, "frame_skip must be positive"),
        ({"frame_skip": True}, "frame_skip must be positive"),
        ({"frame_skip": (4, 2)}, "frame_skip must be positive"),
        ({"frame_skip": (4,)}, "frame_skip must be positive"),
        ({"frame_skip": "4"}, "frame_skip must be positive"),
        ({"frame_skip": 2.5}, "frame_skip must be positive"),
        ({"fire_on_life_loss": True}, "fire_on_life_loss needs episodic_life"),
        ({"env_id": "vizdoom/basic", "frame_skip": (2, 4)}, "random frame_skip"),
        (
            {"env_id": "football/academy_corner", "football_map": "huge"},
            "football_map must be small or medium",
        ),
        ({"env_id": "CartPole-v1", "grayscale": False}, "grayscale: an option of family atari only"),
        ({"env_id": "CartPole-v1", "frame_skip": 4}, "frame_skip is not an option of CartPole-v1"),
        ({"env_id": "CartPool-v1"}, "unknown environment CartPool-v1: did you mean CartPole-v1"),
        ({"env_id": "xyzzy"}, r"unknown environment xyzzy \(an id of your own is package.module:function\)"),
        ({"env_id": "my game:make env"}, "written package.module:function"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options, line):
    with pytest.raises(UserError, match=line) as caught:
        EnvironmentConfig(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "score"),
    [
        ("ALE/Breakout-v5", 300.0),
        ("ALE/Pong-v5", 10.0),
        ("ALE/Riverraid-v5", 4000.0),
        ("ALE/Seaquest-v5", 1830.0),
        ("ALE/SpaceInvaders-v5", 700.0),
        ("ALE/BeamRider-v5", 14900.0),
        ("ALE/Boxing-v5", 98.0),
        ("CartPole-v1", 475.0),
        ("vizdoom/basic", 75.0),
        ("ALE/Asterix-v5", None),
        ("my_game:make_env", None),
    ],
)
def test_a_game_that_exists_has_its_stop_score_or_none(env_id, score):
    assert stop_score(EnvironmentConfig(env_id=env_id).env_id) == score


def test_the_games_are_those_that_ale_py_registers_but_the_ones_for_two_players():
    gymnasium.register_envs(ale_py)
    registered = {name for name in gymnasium.registry if name.startswith("ALE/")}
    two_players = {f"ALE/{name}-v5" for name in ("Combat", "Joust", "MazeCraze", "Warlords")}
    assert set(atari_games()) == registered - two_players
