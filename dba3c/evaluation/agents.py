"""A trained agent for one's own Python: `load` a run's checkpoint, and let it act on the environment's observations."""

from __future__ import annotations

import contextlib
import operator
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike

from dba3c.algorithms.policies import Asked
from dba3c.assembly.model import Spaces, build_model, build_policy, spaces_of
from dba3c.config import TrainConfig
from dba3c.environments.factory import maker_of
from dba3c.environments.normalization import RunningStatistics, kept, statistics_for
from dba3c.environments.spaces import ActionCodec, ObservationCodec
from dba3c.errors import UserError, warn_on_stderr
from dba3c.networks import State, reset_state
from dba3c.own_code import ANYTHING, one_line
from dba3c.runs.checkpoints import TrainedParameters, open_parameters


def load(path: str | os.PathLike[str], *, step: int | None = None, seed: int = 0) -> Agent:
    """A trained agent.

    Args:
        path: a run's folder, or one of its checkpoints (`RUN/checkpoints/step-1000`).
        step: which of a run's checkpoints; None: the newest whole one.
        seed: of the actions that it draws.

    Raises:
        UserError: there is no such run or checkpoint, or the environment, which says what observations and actions
            are, cannot be made here.
    """
    seed, step = whole_number("seed", seed), None if step is None else whole_number("step", step)
    if not 0 <= seed < 1 << 63:
        raise UserError(f"seed must be from 0 to 2**63 - 1, got {seed}")
    folder, trained = open_parameters(path, step, on_skip=warn_on_stderr)
    return Agent(folder.train_config(), trained, seed)


class Agent:
    """Acts on the environment's own observations, one or a batch of them, and keeps its recurrent state between calls.

    Attributes:
        config: of the run that trained it.
        step: the update that its parameters are of.
        network: the PyTorch module, in eval mode, with the checkpoint's parameters.
        observation_space, action_space: of one environment. Atari's observations are frames stacked, uint8
            [4, 84, 84], of protocol 2017, in colour, [12, 84, 84]. What its run normalised the agent normalises itself.
    """

    def __init__(self, config: TrainConfig, trained: TrainedParameters, seed: int = 0) -> None:
        self.config, self.step = config, trained.step
        self.observation_space, self.action_space = own = _spaces_as_made(config)
        self._observations = ObservationCodec(config.environment.env_id, own.observation)
        self._actions = ActionCodec(config.environment.env_id, own.action)
        self._statistics: RunningStatistics | None = None
        seen: spaces.Box = self._observations.space
        if config.environment.normalize_observations:
            self._statistics, seen = statistics_for(
                config.environment.env_id, seen, config.environment.frames_per_observation
            )
            self._statistics.merge(kept(trained.observation_statistics, f"checkpoint step-{trained.step}"))
        given = Spaces(seen, own.action)
        flat = build_model(config, given, only_plays=True).network
        self.network: torch.nn.Module = flat.network
        self._drawn, self._greedy = (
            build_policy(config, flat, given, seed, actions) for actions in ("sampled", "greedy")
        )
        for player in (self._drawn, self._greedy):
            player.load(trained.parameters_for(flat.layout), trained.step)
        self._state: State = ()
        self._games = 0

    def act(self, observation: Any, greedy: bool = False, reward: ArrayLike = 0.0) -> Any:
        """The action for an observation of `observation_space`, or the actions [N, ...] for a batch of N.

        A batch is an array with one dimension more than an observation; where observations are Dicts or Tuples, a list
        of them. Its N games stay in their places from call to call.

        Args:
            greedy: the likeliest action instead of one drawn from the policy.
            reward: the environment's own, of the steps that led here, one or [N]; only R2D2's network looks at it.

        Raises:
            UserError: an observation that does not fit, rewards that are not one for each, or another number of games
                than in the call before.
        """
        is_batch, batch = self._batch(observation)
        games = len(batch)
        if games != self._games:
            if any(part.numel() for part in self._state):
                raise UserError(f"the agent remembers {self._games} games, not {games}: call reset() before others")
            self._games, self._state = games, self._drawn.initial_state(games)
        environment = self.config.environment
        rewards = _for_games(games, "reward", reward, np.float32) * np.float32(environment.reward_scale)
        if environment.clips_reward:  # it is shown rewards as it was trained on them
            rewards = np.clip(rewards, -1.0, 1.0)
        player = self._greedy if greedy else self._drawn
        decision = player.act(Asked(batch, self._state, rewards, np.arange(games)))
        self._state = decision.state
        actions = self._actions.read_all(decision.actions)
        return np.stack(actions) if is_batch else actions[0]

    def reset(self, ended: ArrayLike | None = None) -> None:
        """Forget the games: the next observations begin new ones.

        Args:
            ended: of a batch, bool [N]: the games that are over; the others go on. None: all.

        Raises:
            UserError: it says it of another number of games than are played.
        """
        if ended is None or not self._games:
            self._games, self._state = 0, ()
        else:
            self._state = reset_state(self._state, torch.from_numpy(_for_games(self._games, "ended", ended, np.bool_)))

    def _batch(self, observation: Any) -> tuple[bool, np.ndarray]:
        """(whether a batch was given, the rows [N, ...] that the network takes)."""
        dimensions = None if self.observation_space.shape is None else len(self.observation_space.shape)
        space, env_id = self._observations.space, self.config.environment.env_id
        try:
            is_batch = isinstance(observation, list) if dimensions is None else np.ndim(observation) > dimensions
            each = list(observation) if is_batch else [observation]
            rows = np.empty((len(each), *space.shape), dtype=space.dtype)
            for one, row in zip(each, rows, strict=True):
                self._observations.write(one, row)
                self._observations.check_finite(row)
        except (ValueError, TypeError, RuntimeError) as error:  # the last of a tensor with a gradient
            raise UserError(f"{env_id}: {error}") from error
        if not each:
            raise UserError(f"{env_id}: a batch of no observations")
        return is_batch, rows if self._statistics is None else self._statistics.normalize(rows)


def whole_number(name: str, value: Any) -> int:
    """The argument `name` as Python's int, which JSON and torch take; NumPy's are not. Raises UserError: it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be a whole number, not {value!r}") from None


def _for_games(games: int, name: str, values: ArrayLike, dtype: type[np.generic]) -> np.ndarray:
    """[games]: one value for each, or one for all. Raises UserError: they are neither."""
    try:
        given = np.asarray(values, dtype)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name}: {error}") from error
    if given.shape not in ((), (games,)):
        raise UserError(f"{name} of shape {list(given.shape)} for {games} game{'' if games == 1 else 's'}")
    return np.full(games, given)


def _spaces_as_made(config: TrainConfig) -> Spaces:
    """Of one environment, as it says them itself. Raises UserError: it cannot be made."""
    if config.environment.family == "atari":
        return spaces_of(replace(config, environment=replace(config.environment, normalize_observations=False)))
    try:
        with contextlib.closing(maker_of(config.environment)()) as env:
            return Spaces(env.observation_space, env.action_space)
    except UserError:
        raise
    except ANYTHING as error:
        raise UserError(f"{config.environment.env_id} cannot be made: {one_line(error)}") from error
