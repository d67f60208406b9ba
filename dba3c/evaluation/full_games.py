"""Playing full games with a policy, several at once, without favouring short ones.

Counting the first N games to *finish* in a vector of environments favours short games: while one environment plays a
long, good game, its neighbours finish several short ones. So every environment has a fixed quota: which games count is
settled before any is played, and each of them is played to its end. What they found is written down as

    evaluations/step-N-ACTIONS.json      protocol, seed, hashes, every game's score and length, and their summary
    evaluations/step-N-ACTIONS-I.json    games of the stream of seeds I, where that is not 0: evaluator I's share

beside `checkpoints/`, not in it: a checkpoint's files are those of its manifest, and old ones are deleted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dba3c.algorithms.policies import Actions, Asked, Decision
from dba3c.algorithms.policies import Policy as Player
from dba3c.environments.protocol import Episode, Experience, Transition, VectorEnvironment
from dba3c.errors import UserError
from dba3c.networks import reset_state
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.folder import RunFolder
from dba3c.studies.statistics import ScoreSummary, human_normalised, summarise

FOLDER = "evaluations"
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
    done: list[tuple[int, int, Episode]] = []
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
                done.append((int(played[index]), index, episode))
                played[index] += 1
                on_game(episode)
        # the step that is not valid was a reset: what it returned is a new game's first observation
        state = reset_state(decision.state, torch.from_numpy(~transition.valid))
        running_steps = np.where(transition.valid, running_steps + 1, 0)
        _check_that_games_end(running_steps, played < quota)
        reason = should_stop()
        if reason is not None:
            if not done:
                raise GamesAbandoned(reason)
            break
    in_order = sorted(done, key=lambda game: game[:2])
    return PlayedGames([episode for _, _, episode in in_order], steps, failures, games - len(done))


def _check_that_games_end(running_steps: np.ndarray, counting: np.ndarray) -> None:
    endless = np.flatnonzero((running_steps > LONGEST_GAME_STEPS) & counting)
    if endless.size:
        raise UserError(
            f"environment {endless[0]} has played {LONGEST_GAME_STEPS} steps without ending its game: "
            "give the environment a time limit"
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The full games of one checkpoint. Lists are in the order of the games' fixed numbers."""

    checkpoint_step: int
    data_points: int
    env_id: str
    protocol: str
    actions: Actions
    seed: int
    """The run's."""
    seed_index: int
    """Which of the run's streams of evaluation seeds; the same index plays the same games."""
    num_envs: int
    config_sha256: str
    parameters_sha256: str
    scores: list[float]
    """Unclipped, of whole games."""
    lengths_steps: list[int]
    truncated: list[bool]
    """Whether a time limit ended the game."""
    summary: ScoreSummary
    unfinished: int
    """Games that had not ended when there was no more time; long ones are among them."""
    environment_failures: list[str]
    agent_steps: int
    wall_s: float

    @property
    def human_normalised(self) -> float | None:
        """The mean score, 0 for random actions' and 1 for a person's; None where a person's is not known."""
        return human_normalised(self.env_id, self.summary.mean)

    def path(self, folder: RunFolder) -> Path:
        """Where `save` puts it."""
        stream = f"-{self.seed_index}" if self.seed_index else ""
        return folder.path / FOLDER / f"step-{self.checkpoint_step}-{self.actions}{stream}.json"

    def save(self, folder: RunFolder) -> Path:
        """Write it atomically into the run's folder; one of the same step, actions and stream is replaced."""
        path = self.path(folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {path.parent}: {error.strerror}") from error
        fields = dataclasses.asdict(self)
        fields["summary"]["interval_95_of"] = "iqm"
        write_atomically(path, json.dumps(fields, indent=1, allow_nan=False) + "\n")
        return path


def together(folder: RunFolder, share: Evaluation, evaluators: int) -> tuple[ScoreSummary, int]:
    """(summary, unfinished games) of all evaluators' shares of a checkpoint that are there by now, `share` among them.

    Each evaluator writes its share before it looks for the others', so whoever comes last sees all of them.
    """
    scores, unfinished = list(share.scores), share.unfinished
    for index in set(range(evaluators)) - {share.seed_index}:
        fields = _read(dataclasses.replace(share, seed_index=index).path(folder))
        if fields.get("parameters_sha256") == share.parameters_sha256:
            scores += [float(score) for score in fields["scores"]]
            unfinished += int(fields["unfinished"])
    return summarise(scores), unfinished


def evaluated_policies(folder: RunFolder, games: int, seed_index: int = 0) -> set[str]:
    """SHA-256 of the parameters with which so many games of a stream were played, in this life of the run or before."""
    found = map(_read, sorted((folder.path / FOLDER).glob("step-*.json")))
    whole = (one for one in found if one.get("seed_index") == seed_index and not one.get("unfinished"))
    return {str(one["parameters_sha256"]) for one in whole if len(one["scores"]) >= games}


def _read(path: Path) -> dict[str, Any]:
    """An evaluation's fields; {} where there is none, or none of ours: then it is played again."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        ours = {"parameters_sha256": str(fields["parameters_sha256"]), "unfinished": int(fields.get("unfinished", 0))}
        return {**ours, "seed_index": fields["seed_index"], "scores": list(map(float, fields["scores"]))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
