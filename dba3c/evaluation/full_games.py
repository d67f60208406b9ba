"""Full games with a checkpoint's policy: who plays and how (a score without its protocol means nothing), and playing
several at once without favouring short ones.

The player is a checkpoint's policy, whatever algorithm trained it. Its games:

| protocol   | games                                                   | actions | source                            |
|------------|---------------------------------------------------------|---------|-----------------------------------|
| `2017`     | 40,000 agent steps at most, FIRE as 30th equal action   | greedy  | the 2017 system's evaluation node |
| all others | whole, to the environment's own limit                   | sampled | as A3C and IMPALA evaluated       |

Either kind of actions can be asked for; the name says which were taken.

Counting the first N games to *finish* in a vector of environments favours short games: while one environment plays a
long, good game, its neighbours finish several short ones. So every environment has a fixed quota: which games count is
settled before any is played, and each of them is played to its end.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from dba3c.algorithms.policies import Actions, Asked, Decision, Policy
from dba3c.assembly.model import R2D2_EVALUATION_EPSILON, Spaces, build_model, build_policy
from dba3c.config import TrainConfig
from dba3c.environments.atari_protocols import ATARI_PROTOCOLS, protocol_name
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.normalization import use_statistics
from dba3c.environments.protocol import MAX_SEED, Episode, Experience, Transition, VectorEnvironment
from dba3c.errors import UserError
from dba3c.networks import reset_state
from dba3c.runs.checkpoints import TrainedParameters

LIMIT_2017_STEPS = 40_000
LONGEST_GAME_STEPS = 250_000
"""No game is waited for longer (agent steps). Atari is cut by its own limit well before."""


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol:
    """The environment as it is evaluated, and how actions are chosen from the policy."""

    name: str
    environment: EnvironmentConfig
    actions: Actions


def protocol_for(config: TrainConfig, actions: Actions | None = None) -> EvaluationProtocol:
    """The protocol that fits the run's environment; `actions` overrides its choice.

    The 2017 limit is set in frames, as consoles count them: 40,000 steps of its mean frame skip of 3 (the frame skip
    is drawn at random, so a game is cut within 1 % of 40,000 steps).
    """
    if actions not in (None, "sampled", "greedy"):
        raise UserError(f"actions are sampled or greedy, not {actions!r}")
    environment = config.environment
    name = protocol_name(environment)
    is_2017 = name.split(" ")[0] == "2017"
    if is_2017 and environment.max_episode_frames == ATARI_PROTOCOLS["2017"]["max_episode_frames"]:
        frames = round(LIMIT_2017_STEPS * environment.frames_per_step)
        environment = replace(environment, max_episode_frames=frames)
        name += f", at most {LIMIT_2017_STEPS:,} steps a game"
    actions = actions or ("greedy" if is_2017 else "sampled")
    chosen = f"{actions} actions"
    if config.algorithm.algorithm == "r2d2" and actions == "sampled":
        chosen = f"greedy actions but for {R2D2_EVALUATION_EPSILON:.1%} random ones"
    return EvaluationProtocol(name=f"{name}, {chosen}", environment=environment, actions=actions)


def stream_seeds(run_seed: int, purpose: str, index: int) -> tuple[int, int]:
    """(seed of the environments, seed of the actions): functions of (run seed, purpose, index) alone.

    Raises:
        UserError: the index is negative.
    """
    if index < 0:
        raise UserError(f"seed_index must not be negative, got {index}")
    words = np.random.SeedSequence([run_seed, zlib.crc32(purpose.encode()), index]).generate_state(2, dtype=np.uint64)
    return int(words[0] % MAX_SEED), int(words[1] >> np.uint64(1))


def make_player(
    config: TrainConfig, environments: VectorEnvironment, trained: TrainedParameters, actions: Actions, seed: int
) -> Policy:
    """The player that the run's algorithm trained, with a checkpoint's parameters, for environments of the evaluation
    view, which from now on normalise as that checkpoint did.

    Raises:
        UserError: the checkpoint is of another network, or its run kept no statistics of observations.
    """
    use_statistics(environments, trained.observation_statistics, f"checkpoint step-{trained.step}")
    of = Spaces(environments.observation_space, environments.action_space)
    network = build_model(config, of, only_plays=True).network
    player = build_policy(config, network, of, seed, actions)
    player.load(trained.parameters_for(network.layout), trained.step)
    return player


class GamesAbandoned(Exception):
    """There was a reason to stop before a single game had ended."""


class EndlessGame(UserError):
    """A game went on and on."""


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
    player: Policy,
    environments: VectorEnvironment,
    games: int,
    *,
    on_game: Callable[[Episode], None] = lambda episode: None,
    on_step: Callable[[np.ndarray, Transition | None, Decision | None], None] = lambda observation, *_: None,
    should_stop: Callable[[], str | None] = lambda: None,
) -> PlayedGames:
    """Play `games` games from reset, each to its end, in environments of the evaluation view.

    Exactly so many, unless there is a reason to stop before: then those that had ended, and how many had not.

    Args:
        on_game: called with each counted game when it ends.
        on_step: called with the first observations [B, ...], then with each step's, the step, and what decided it.
        should_stop: asked after every step; a reason ends the playing.

    Raises:
        GamesAbandoned: `should_stop` gave a reason, and no game had ended.
        UserError: an environment broke for good, or a game does not end.
    """
    quota = quotas(games, environments.num_envs)
    played = np.zeros_like(quota)
    done: dict[tuple[int, int], Episode] = {}  # by its number in the environment, and the environment
    failures: list[str] = []
    running_steps = np.zeros_like(quota)
    steps = 0
    observation = environments.reset()
    on_step(observation, None, None)
    reward = np.zeros(environments.num_envs, dtype=np.float32)
    state, numbers = player.initial_state(environments.num_envs), np.arange(environments.num_envs)
    while len(done) < games:
        decision = player.act(Asked(observation, state, reward, numbers))
        transition = environments.step(decision.actions)
        observation, reward = transition.observation, transition.reward
        on_step(observation, transition, decision)
        steps += Experience.of(transition.frames).agent_steps
        failures += transition.failures
        for episode in transition.episodes:
            index = episode.environment
            if played[index] < quota[index]:
                done[int(played[index]), index] = episode
                played[index] += 1
                on_game(episode)
        state = reset_state(decision.state, torch.from_numpy(transition.first))
        running_steps = np.where(transition.first, 0, running_steps + 1)
        endless = np.flatnonzero((running_steps > LONGEST_GAME_STEPS) & (played < quota))
        if endless.size:
            raise EndlessGame(
                f"environment {endless[0]} has played {LONGEST_GAME_STEPS} steps without ending its game: "
                "give the environment a time limit"
            )
        reason = should_stop()
        if reason is not None:
            if not done:
                raise GamesAbandoned(reason)
            break
    return PlayedGames([done[number] for number in sorted(done)], steps, failures, games - len(done))
