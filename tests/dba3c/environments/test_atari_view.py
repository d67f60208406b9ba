"""The training and evaluation views over scripted consoles: every number here is worked out by hand."""

import numpy as np
import pytest
from ale_py import Action

from dba3c.environments.atari import AtariVectorEnvironment, ConsoleStep
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import Experience
from dba3c.errors import UserError

NOOP, FIRE, RIGHT = 0, 1, 2


class ScriptedConsoles:
    """One console whose steps are given as (reward, game_over, cut, lives)."""

    actions = [Action.NOOP, Action.FIRE, Action.RIGHT]  # noqa: RUF012
    observation_shape = (1, 1, 1)

    def __init__(self, lives, script):
        self.lives, self.script, self.played = lives, script, []

    def reset(self, seeds):
        return np.zeros((1, 1, 1, 1), np.uint8), np.array([self.lives])

    def step(self, actions):
        reward, game_over, cut, lives = self.script[len(self.played)]
        frames = np.array([1 if game_over else 4])
        self.played.append(int(actions[0]))
        observation = np.full((1, 1, 1, 1), len(self.played), np.uint8)
        return ConsoleStep(
            observation, np.array([reward]), np.array([game_over]), np.array([cut]), np.array([lives], np.int32), frames
        )

    def close(self):
        pass


def play(script, actions=None, lives=2, view="training", **options):
    consoles = ScriptedConsoles(lives, script)
    envs = AtariVectorEnvironment(EnvironmentConfig(**options), consoles, np.array([1]), view)
    envs.reset()
    actions = actions or [RIGHT] * len(script)
    return [envs.step(np.array([action])) for action in actions], consoles.played


def test_a_lost_life_terminates_the_training_view_and_the_next_step_is_an_ordinary_one():
    transitions, _ = play([(0, False, False, 2), (0, False, False, 1), (1, False, False, 1)], episodic_life=True)
    assert [bool(t.terminated[0]) for t in transitions] == [False, True, False]
    assert all(t.valid[0] for t in transitions)
    assert all(not t.episodes for t in transitions)


def test_without_episodic_life_a_lost_life_terminates_nothing():
    transitions, _ = play([(0, False, False, 1), (0, True, False, 0)])
    assert [bool(t.terminated[0]) for t in transitions] == [False, True]


def test_the_step_after_a_game_is_the_reset_and_does_not_train():
    script = [(5, False, False, 1), (7, True, False, 0), (0, False, False, 2), (1, False, False, 2)]
    transitions, _ = play(script, episodic_life=True)
    assert [bool(t.valid[0]) for t in transitions] == [True, True, False, True]
    assert [bool(t.terminated[0]) for t in transitions] == [True, True, False, False]
    assert [t.reward[0] for t in transitions] == [1, 1, 0, 1]
    (episode,) = transitions[1].episodes
    assert (episode.score, episode.length_steps, episode.terminated, episode.truncated) == (12.0, 2, True, False)


def test_lives_given_back_by_a_reset_are_not_lost_ones():
    script = [(0, True, False, 0), (0, False, False, 2), (0, False, False, 1)]
    transitions, _ = play(script, episodic_life=True)
    assert [bool(t.terminated[0]) for t in transitions] == [True, False, True]


def test_a_frame_limit_truncates_even_when_it_falls_on_a_lost_life():
    transitions, _ = play([(2, False, True, 1), (0, False, False, 2)], episodic_life=True)
    assert not transitions[0].terminated[0] and transitions[0].truncated[0]
    assert transitions[0].episodes[0].truncated and not transitions[0].episodes[0].terminated
    assert not transitions[1].valid[0]


def test_scores_are_raw_while_rewards_are_scaled_and_clipped_in_an_evaluation_as_in_training():
    script = [(50, False, False, 2), (-3, True, False, 0)]
    training, _ = play(script, reward_scale=0.2)
    evaluation, _ = play(script, view="evaluation", reward_scale=0.2)
    for transitions in (training, evaluation):
        assert [float(t.reward[0]) for t in transitions] == pytest.approx([1, -0.6])
        assert [t.gained[0] for t in transitions] == [50, -3]
    assert training[1].episodes[0].score == evaluation[1].episodes[0].score == 47
    assert training[0].reward.dtype == np.float32


def test_frames_are_those_that_were_run_and_a_reset_ran_none():
    script = [
        (0, False, False, 1),
        (7, True, False, 0),
        (0, False, False, 2),
        (1, False, False, 1),
        (0, False, False, 1),
    ]
    for view in ("training", "evaluation"):
        transitions, _ = play(script, view=view, episodic_life=True, fire_on_life_loss=True)
        # the FIRE after a lost life does not train, but the console has run
        assert [int(t.frames[0]) for t in transitions] == [4, 1, 0, 4, 4]
        assert Experience.of(np.stack([t.frames for t in transitions])) == (4, 13)


def test_an_evaluation_plays_full_games_whatever_training_does():
    transitions, _ = play([(0, False, False, 1), (0, True, False, 0)], view="evaluation", episodic_life=True)
    assert [bool(t.terminated[0]) for t in transitions] == [False, True]


def test_fire_on_life_loss_replaces_the_next_action_and_that_step_does_not_train():
    script = [(0, False, False, 1), (0, False, False, 1), (0, False, False, 1)]
    transitions, played = play(script, episodic_life=True, fire_on_life_loss=True)
    assert played == [RIGHT, FIRE, RIGHT]
    assert [bool(t.valid[0]) for t in transitions] == [True, False, True]
    assert [bool(t.terminated[0]) for t in transitions] == [True, False, False]


def test_an_evaluation_presses_fire_too_where_training_does():
    script = [(0, False, False, 1), (0, False, False, 1)]
    transitions, played = play(script, view="evaluation", episodic_life=True, fire_on_life_loss=True)
    assert played == [RIGHT, FIRE]
    assert not any(t.first[0] for t in transitions)  # its memory goes on


def test_the_stuck_guard_fires_at_the_nth_equal_action_in_evaluation_only():
    script = [(0, False, False, 2)] * 5
    actions = [RIGHT, RIGHT, RIGHT, RIGHT, NOOP]
    _, evaluated = play(script, actions, view="evaluation", stuck_guard_steps=3)
    _, trained = play(script, actions, stuck_guard_steps=3)
    assert evaluated == [RIGHT, RIGHT, FIRE, FIRE, NOOP]
    assert trained == actions


def test_the_stuck_guard_counts_a_game_s_own_actions_only():
    script = [(0, False, False, 2), (0, True, False, 0), *[(0, False, False, 2)] * 4]
    _, played = play(script, [RIGHT] * 6, view="evaluation", stuck_guard_steps=3)
    assert played[3:] == [RIGHT, RIGHT, FIRE]  # the third action was the reset's, which no game sees


@pytest.mark.parametrize("actions", [[3], [-1], [0, 0], [0.5]])
def test_actions_the_console_would_hang_on_are_refused(actions):
    envs = AtariVectorEnvironment(EnvironmentConfig(), ScriptedConsoles(2, []), np.array([1]), "training")
    envs.reset()
    with pytest.raises(UserError, match="actions must be"):
        envs.step(np.array(actions))
