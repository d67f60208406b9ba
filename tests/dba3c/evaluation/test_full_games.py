"""Which games count is settled before they are played; recurrent state starts anew with each."""

import numpy as np
import pytest
import torch

from dba3c.algorithms.policies import Decision
from dba3c.environments.protocol import Episode, Transition
from dba3c.errors import UserError
from dba3c.evaluation import full_games
from dba3c.evaluation.full_games import GamesAbandoned, play_full_games, quotas


class LongGamesScoreMore:
    """Each environment plays its list of lengths over and over; a game's score is its length. NEXT_STEP autoreset."""

    def __init__(self, *lengths):
        self.lengths = lengths
        self.num_envs = len(lengths)
        self.games = [0] * self.num_envs
        self.at = [0] * self.num_envs
        self.actions = []

    def reset(self):
        return np.zeros((self.num_envs, 1), np.float32)

    def step(self, actions):
        self.actions.append(actions)
        ended = np.zeros(self.num_envs, bool)
        valid = np.ones(self.num_envs, bool)
        episodes = []
        for index, lengths in enumerate(self.lengths):
            length = lengths[self.games[index] % len(lengths)]
            if self.at[index] == length:
                self.at[index], valid[index] = 0, False
                self.games[index] += 1
                continue
            self.at[index] += 1
            if self.at[index] == length:
                ended[index] = True
                episodes.append(Episode(float(length), length, True, False, index))
        observation = np.array(self.at, np.float32)[:, None]
        ones, frames = np.ones(self.num_envs, np.float32), 4 * valid.astype(np.int64)
        return Transition(observation, ones, ended, ~valid & ended, valid, ~valid, episodes, ones, frames)


class CountingPlayer:
    """Its recurrent state counts the observations it has seen of a game."""

    def __init__(self):
        self.states = []
        self.rewards = []

    def initial_state(self, num_envs):
        return (torch.zeros(num_envs, 2),)

    def act(self, asked):
        self.states.append(asked.state[0][:, 0].tolist())
        self.rewards.append(asked.reward.tolist())
        zeros = np.zeros(len(asked.observation), np.int64)
        return Decision(zeros, zeros, (asked.state[0] + 1,))


def played(environments, games, **options):
    return play_full_games(CountingPlayer(), environments, games, **options)


def test_quotas_are_as_equal_as_they_can_be():
    assert quotas(50, 10).tolist() == [5] * 10
    assert quotas(7, 3).tolist() == [3, 2, 2]
    assert quotas(2, 2).tolist() == [1, 1]


def test_exactly_the_games_of_the_quota_count_however_short_the_others_are():
    environments = LongGamesScoreMore([2], [2], [100])
    scores = [episode.score for episode in played(environments, 6).episodes]
    # the first six to finish would be 2 2 2 2 2 2, with the mean 2 instead of 34.67
    assert scores == [2, 2, 100, 2, 2, 100]
    assert environments.games[0] > 40


def test_games_come_in_the_order_of_their_numbers_not_of_their_ends():
    environments = LongGamesScoreMore([9, 1], [1, 20])
    ended = []
    games = played(environments, 4, on_game=lambda episode: ended.append(episode.score))
    assert [episode.score for episode in games.episodes] == [9, 1, 1, 20]
    assert ended == [1, 9, 1, 20]
    assert games.agent_steps == 2 * len(environments.actions) - 4  # resets are none


def test_lengths_that_correlate_with_scores_do_not_bias_the_mean():
    lengths = np.random.default_rng(0).geometric(0.05, size=(10, 20)).tolist()
    games = played(LongGamesScoreMore(*lengths), 200)
    assert np.mean([episode.score for episode in games.episodes]) == np.mean(lengths)


def test_the_recurrent_state_is_a_fresh_one_where_a_game_starts():
    player = CountingPlayer()
    play_full_games(player, LongGamesScoreMore([2], [3]), 4)
    # a game of 2: observations 0 1 2(last), whose step is the reset, then 0 again
    assert [states[0] for states in player.states] == [0, 1, 2, 0, 1, 2, 0]
    assert [states[1] for states in player.states] == [0, 1, 2, 3, 0, 1, 2]


def test_a_reason_to_stop_ends_the_playing_and_the_games_that_had_not_ended_are_counted():
    asked = iter([None] * 4 + ["no more time"])
    games = played(LongGamesScoreMore([2], [100]), 4, should_stop=lambda: next(asked))
    assert (len(games.episodes), games.unfinished) == (2, 2)
    assert played(LongGamesScoreMore([2], [3]), 4).unfinished == 0
    with pytest.raises(GamesAbandoned, match="no more time"):
        played(LongGamesScoreMore([100], [100]), 4, should_stop=lambda: "no more time")


def test_a_game_that_does_not_end_is_an_error_that_names_its_environment(monkeypatch):
    monkeypatch.setattr(full_games, "LONGEST_GAME_STEPS", 30)
    with pytest.raises(UserError, match="environment 1 has played 30 steps without ending"):
        played(LongGamesScoreMore([5], [1000]), 2)
