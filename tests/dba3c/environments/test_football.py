"""Google Research Football, where it is installed: its maps, its scores, and why a game ended."""

from dataclasses import replace

import numpy as np
import pytest

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.football import FootballEnv
from dba3c.errors import UserError

football_env = pytest.importorskip("gfootball.env")

CONFIG = EnvironmentConfig(env_id="football/academy_empty_goal_close")
IDLE, RIGHT, SHOT, SPRINT = 0, 5, 12, 13
SEEDED = ("game_engine_random_seed", "reverse_team_processing")


def play_until_games_end(envs, games, action_at):
    """Steps until `games` ended; returns the transitions."""
    transitions, episodes = [], []
    for t in range(2000):
        transitions.append(envs.step(np.full(envs.num_envs, action_at(t))))
        episodes += transitions[-1].episodes
        if len(episodes) >= games:
            return transitions, episodes
    raise AssertionError("no game ended within 2,000 steps")


def test_the_map_is_sixteen_binary_planes(made):
    envs = made(CONFIG, 1, seed=0)
    observation = envs.reset()
    assert observation.shape == (1, 16, 72, 96) and set(np.unique(observation)) == {0, 255}
    newest = observation[0, 12:]
    assert [int((plane > 0).sum()) for plane in newest] == [2, 1, 1, 1]  # my keeper and I, theirs, the ball, I


def test_the_map_is_gfootballs_own_stack_of_four_frames():
    ours = FootballEnv("academy_empty_goal_close", "extracted", (96, 72), "scoring")
    theirs = football_env.create_environment(
        env_name="academy_empty_goal_close", representation="extracted", stacked=True, channel_dimensions=(96, 72)
    )
    shown, _ = ours.reset(seed=5)
    theirs.unwrapped._config.update({name: ours._config[name] for name in SEEDED})
    np.testing.assert_array_equal(shown, np.moveaxis(theirs.reset(), 2, 0))
    for t in range(30):
        action = np.int64(SPRINT if t == 0 else RIGHT)
        shown, reward, terminated, truncated, _ = ours.step(action)
        expected, gained, done, _ = theirs.step(action)
        np.testing.assert_array_equal(shown, np.moveaxis(expected, 2, 0))
        assert (reward, terminated or truncated) == (gained, done)
        if done:
            break
    ours.close()
    theirs.close()


@pytest.mark.parametrize(("size", "shape"), [("medium", (16, 90, 120)), ("large", (16, 108, 144))])
def test_larger_maps(made, size, shape):
    assert made(replace(CONFIG, football_map=size), 1, seed=0).observation_space.shape == shape


def test_simple115_is_115_numbers(made):
    envs = made(replace(CONFIG, football_observation="simple115v2"), 1, seed=0)
    assert envs.reset().shape == (1, 115)


def test_a_goal_terminates_and_is_the_score(made):
    envs = made(CONFIG, 2, seed=0)
    envs.reset()
    _, episodes = play_until_games_end(envs, 4, lambda t: RIGHT if t % 40 < 12 else SHOT)
    assert any(e.score == 1.0 and e.terminated for e in episodes)


def test_running_out_of_the_clock_truncates(made):
    """Standing still with the ball, nobody takes it for the 400 steps of this scenario."""
    envs = made(EnvironmentConfig(env_id="football/academy_run_to_score"), 1, seed=3)
    envs.reset()
    transitions, (episode,) = play_until_games_end(envs, 1, lambda t: IDLE)
    assert episode.truncated and episode.score == 0.0 and episode.length_steps >= 400
    assert transitions[-1].truncated[0] and not transitions[-1].terminated[0]


def test_losing_the_ball_terminates_where_the_scenario_ends_on_it(made):
    envs = made(CONFIG, 1, seed=3)
    envs.reset()
    _, (episode,) = play_until_games_end(envs, 1, lambda t: IDLE)
    assert episode.terminated and episode.score == 0.0 and episode.length_steps < 400


def test_checkpoint_rewards_train_but_are_no_score(made):
    config = replace(CONFIG, football_rewards="scoring,checkpoints")
    envs = made(config, 1, seed=0)
    envs.reset()
    transitions, (episode, *_) = play_until_games_end(envs, 1, lambda t: RIGHT)
    assert sum(float(t.reward[0]) for t in transitions) > episode.score
    assert episode.score in (-1.0, 0.0, 1.0)
    assert sum(float(t.gained[0]) for t in transitions) == episode.score
    judged = made(config, 1, seed=0, view="evaluation")  # by what it was trained on, an agent may remember
    judged.reset()
    again, (episode, *_) = play_until_games_end(judged, 1, lambda t: RIGHT)
    assert [float(t.reward[0]) for t in again] == [float(t.reward[0]) for t in transitions]
    assert sum(float(t.gained[0]) for t in again) == episode.score


def test_an_unknown_scenario_names_the_close_ones():
    with pytest.raises(UserError, match=r"did you mean football/academy_empty_goal"):
        make_vector_environment(EnvironmentConfig(env_id="football/academy_empty"), 1, seed=0)
