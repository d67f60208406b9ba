"""Playing full games with a policy, several at once, without favouring short ones.

Counting the first N games to *finish* in a vector of environments favours short games: while one environment plays a
long, good game, its neighbours finish several short ones. So every environment has a fixed quota: which games count is
settled before any is played, and each of them is played to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from dba3c.environments.protocol import Episode, Experience, VectorEnvironment
from dba3c.errors import UserError
from dba3c.evaluation.players import Player
from dba3c.networks import State

LONGEST_GAME_STEPS = 250_000
"""No game is waited for longer (agent steps). Atari is cut by its own limit well before."""


class GamesAbandoned(Exception):
    """There was a reason to stop before a single game had ended."""


class PlayedGames(NamedTuple):
    """Games in the order (their number in the environment, environment)."""

    episodes: list[Episode]
    agent_steps: int
    """Steps of all environments, those of uncounted games included."""
    failures: list[str]
    """One line for each environment that broke and was restarted; its broken game does not count."""
    unfinished: int = 0
    """Games of those asked for that had not ended when there was a reason to stop: long ones are among them."""


def quotas(games: int, num_envs: int) -> np.ndarray:
    """How many games each environment plays: int [B], summing to `games`, as equal as possible."""
    return np.array([games // num_envs + (index < games % num_envs) for index in range(num_envs)])


def play_full_games(
    player: Player,
    environments: VectorEnvironment,
    games: int,
    *,
    on_game: Callable[[Episode], None] = lambda episode: None,
    should_stop: Callable[[], str | None] = lambda: None,
) -> PlayedGames:
    """Play `games` games from reset, each to its end, in environments of the evaluation view.

    Exactly so many, unless there is a reason to stop before: then those that had ended, and how many had not.

    Args:
        on_game: called with each counted game when it ends.
        should_stop: asked after every step; a reason ends the playing.

    Raises:
        GamesAbandoned: `should_stop` gave a reason, and no game had ended.
        UserError: an environment broke for good, or a game does not end.
    """
    quota = quotas(games, environments.num_envs)
    played = np.zeros_like(quota)
    done: list[tuple[int, int, Episode]] = []
    failures: list[str] = []
    running_steps = np.zeros_like(quota)
    steps = 0
    observation = environments.reset()
    reward = np.zeros(environments.num_envs, dtype=np.float32)
    state = player.initial_state(environments.num_envs)
    while len(done) < games:
        choice = player.choose(observation, reward, state)
        transition = environments.step(choice.actions)
        observation, reward = transition.observation, transition.reward
        steps += Experience.of(transition.frames).agent_steps
        failures += transition.failures
        for episode in transition.episodes:
            index = episode.environment
            if played[index] < quota[index]:
                done.append((int(played[index]), index, episode))
                played[index] += 1
                on_game(episode)
        # the step that is not valid was a reset: what it returned is a new game's first observation
        state = restarted(player, choice.state, ~transition.valid)
        running_steps = np.where(transition.valid, running_steps + 1, 0)
        _check_that_games_end(running_steps, played < quota)
        reason = should_stop()
        if reason is not None:
            if not done:
                raise GamesAbandoned(reason)
            break
    in_order = sorted(done, key=lambda game: game[:2])
    return PlayedGames([episode for _, _, episode in in_order], steps, failures, games - len(done))


def restarted(player: Player, state: State, fresh: np.ndarray) -> State:
    """The recurrent state with the rows of `fresh` (bool [B]) environments as at a game's start."""
    if not state or not fresh.any():
        return state
    rows = torch.from_numpy(fresh)
    initial = player.initial_state(len(fresh))
    return tuple(
        torch.where(rows.to(part.device).view(-1, *[1] * (part.dim() - 1)), start, part)
        for part, start in zip(state, initial, strict=True)
    )


def _check_that_games_end(running_steps: np.ndarray, counting: np.ndarray) -> None:
    endless = np.flatnonzero((running_steps > LONGEST_GAME_STEPS) & counting)
    if endless.size:
        raise UserError(
            f"environment {endless[0]} has played {LONGEST_GAME_STEPS} steps without ending its game: "
            "give the environment a time limit"
        )
