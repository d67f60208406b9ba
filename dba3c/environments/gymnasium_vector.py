"""Any single `gymnasium.Env`, B of them in a loop: classic control, Box2D, MuJoCo, toy text and every other id.

Needs: what the id needs (`gymnasium[mujoco]`, `gymnasium[box2d]`). Observes: see `spaces`. Frame skip: 1 (as
registered). Score: the sum of rewards, or of `info["score_reward"]` where an environment with a shaped reward gives it.
Stop score: the registry's reward threshold (`stop_scores`).

Why not `gymnasium.vector.SyncVectorEnv`: it copies every batch once more, and one environment that breaks takes all
others with it without saying which it was. Here an environment that raises, returns NaN, or a wrong shape or dtype, is
named with its index, seed and step, and started anew a bounded number of times; the broken step is `truncated` (so the
steps before it bootstrap from the last good observation) and not `valid`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.errors import EnvironmentFailed, failure_line
from dba3c.environments.process_env import ProcessEnv
from dba3c.environments.protocol import Episode, Transition
from dba3c.environments.seeding import environment_seed
from dba3c.environments.spaces import BROKEN_NUMBERS, ActionCodec, ObservationCodec
from dba3c.errors import UserError

_LOG = logging.getLogger(__name__)
MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]


class LoopVectorEnvironment:
    """A `VectorEnvironment` that steps B `gymnasium.Env` objects one after the other in this thread."""

    def __init__(self, config: EnvironmentConfig, make_env: MakeEnv, num_envs: int, seed: int, view: str) -> None:
        self.num_envs = num_envs
        self.frame_skip = config.frames_per_step
        self._env_id = config.env_id
        self._make_env = make_env
        self._seed = seed
        self._clip_reward = config.clips_reward and view == "training"
        self._reward_scale = config.reward_scale if view == "training" else 1.0
        self._restarts_allowed = config.environment_restarts
        self._envs: list[gymnasium.Env[Any, Any]] = []
        try:
            self._envs.append(make_env())  # one first: when it cannot be made, one error says so
            self._observations = ObservationCodec(self._env_id, self._envs[0].observation_space)
            self._actions = ActionCodec(self._env_id, self._envs[0].action_space)
            self._envs += [make_env() for _ in range(num_envs - 1)]
        except Exception as error:
            self.close()
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self._env_id} cannot be made: {_one_line(error)}") from error
        self.observation_space: Space[Any] = self._observations.space
        self.action_space = self._actions.space
        self._restarts = [0] * num_envs
        self._last: np.ndarray | None = None

    def reset(self, seed: int | None = None) -> np.ndarray:
        """First observations [B, ...]; see `VectorEnvironment.reset`."""
        if seed is not None:
            self._seed = seed
        self._score = np.zeros(self.num_envs, dtype=np.float64)
        self._length_steps = np.zeros(self.num_envs, dtype=np.int64)
        self._life_steps = np.zeros(self.num_envs, dtype=np.int64)  # since the environment was made, for failure lines
        self._resetting = np.zeros(self.num_envs, dtype=bool)
        self._unseeded = np.ones(self.num_envs, dtype=bool)
        observation = self._new_batch()
        self._send_ahead(None)
        for index in range(self.num_envs):
            self._reset_one(index, observation[index], failures=[])
        self._last = observation
        return observation

    def step(self, actions: np.ndarray, out: np.ndarray | None = None) -> Transition:
        """One agent step of every environment; see `VectorEnvironment.step`."""
        if self._last is None:
            raise RuntimeError("reset() must come before step()")
        actions = self._actions.check(actions, self.num_envs)
        observation = self._new_batch() if out is None else out
        reward = [0.0] * self.num_envs
        raw = [0.0] * self.num_envs  # what counts as score
        terminated, truncated = [False] * self.num_envs, [False] * self.num_envs
        broken: dict[int, Exception] = {}
        failures: list[str] = []
        resetting = self._resetting
        self._send_ahead(actions)
        shown: list[Any] = [None] * self.num_envs
        at_reset = resetting.tolist()
        for index, (env, action) in enumerate(zip(self._envs, self._actions.read_all(actions), strict=True)):
            if at_reset[index]:
                shown[index] = observation[index]
                self._reset_one(index, shown[index], failures)
                continue
            try:
                shown[index], gained, terminated[index], truncated[index], info = env.step(action)
                reward[index] = gained = float(gained)
                raw[index] = float(info["score_reward"]) if "score_reward" in info else gained
            except Exception as error:  # whatever a stranger's environment raises is named and bounded
                broken[index], shown[index] = error, self._last[index]
        self._write(shown, observation, broken)
        valid = ~resetting
        self._life_steps += valid
        rewards = np.array(reward, dtype=np.float32)
        self._name_broken_numbers(observation, rewards, broken)
        for index, why in broken.items():
            terminated[index], truncated[index], rewards[index], raw[index] = False, True, 0.0, 0.0
            observation[index] = self._last[index]
            valid[index] = False
            self._restart(index, why, failures)
        self._score += raw
        self._length_steps += valid
        ended, cut = np.array(terminated, dtype=bool), np.array(truncated, dtype=bool)
        self._resetting = ended | cut
        finished = [int(index) for index in np.flatnonzero(self._resetting) if index not in broken]
        episodes = [self._finish(index, terminated=bool(ended[index])) for index in finished]
        self._last = observation
        if self._reward_scale != 1.0:
            rewards *= np.float32(self._reward_scale)
        if self._clip_reward:
            np.clip(rewards, -1.0, 1.0, out=rewards)
        return Transition(observation, rewards, ended, cut & ~ended, valid, episodes, failures)

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _send_ahead(self, actions: np.ndarray | None) -> None:
        """Let environments that are processes start on this step, or without actions on their reset, all at once."""
        if not isinstance(self._envs[0], ProcessEnv):
            return
        for index, env in enumerate(self._envs):
            if isinstance(env, ProcessEnv):
                if actions is None or self._resetting[index]:
                    env.send_reset(self._seed_of(index) if self._unseeded[index] else None)
                else:
                    env.send_step(self._actions.read(actions, index))

    def _new_batch(self) -> np.ndarray:
        return np.empty((self.num_envs, *self._observations.space.shape), dtype=self._observations.space.dtype)

    def _write(self, shown: list[Any], observation: np.ndarray, broken: dict[int, Exception]) -> None:
        """Put what was shown into `observation` [B, ...], and add to `broken` whose does not fit."""
        if self._observations.write_all(shown, observation):
            return
        for index in np.flatnonzero(~self._resetting):
            try:
                self._observations.write(shown[index], observation[index])
            except Exception as error:  # as in step: a stranger's observation may be anything
                broken.setdefault(int(index), error)

    def _name_broken_numbers(self, observation: np.ndarray, rewards: np.ndarray, broken: dict[int, Exception]) -> None:
        """Add to `broken` the environments whose observation or reward is no finite number; one look at all of them."""
        if not math.isfinite(rewards.sum()):
            for index in range(self.num_envs):
                if not math.isfinite(rewards[index]):
                    broken.setdefault(index, ValueError(f"reward {rewards[index]}"))
        if self._observations.may_be_broken(observation):
            for index in range(self.num_envs):
                if not np.isfinite(observation[index]).all():
                    broken.setdefault(index, ValueError(BROKEN_NUMBERS))

    def _reset_one(self, index: int, row: np.ndarray, failures: list[str]) -> None:
        """Start a new game; an environment that cannot is restarted while it may be."""
        while True:
            try:
                seed = self._seed_of(index) if self._unseeded[index] else None
                observation, _ = self._envs[index].reset(seed=seed)
                self._observations.write(observation, row)
                self._observations.check_finite(row)
                self._unseeded[index] = False
                return
            except Exception as error:  # as in step
                self._restart(index, error, failures)

    def _restart(self, index: int, error: Exception, failures: list[str]) -> None:
        """Replace a broken environment by a new one with the next seed, or give up."""
        what = _one_line(error)
        line = failure_line(self._env_id, index, self._seed_of(index), int(self._life_steps[index]), what)
        if self._restarts[index] >= self._restarts_allowed:
            raise EnvironmentFailed(f"{line}; given up after {self._restarts[index]} restarts") from error
        self._restarts[index] += 1
        failures.append(f"{line}; restart {self._restarts[index]} of {self._restarts_allowed}")
        _LOG.warning(failures[-1])
        try:
            self._envs[index].close()
        except Exception as close_error:  # it is broken already; the line says that it did not close
            failures[-1] += f" (closing it raised {type(close_error).__name__})"
        self._envs[index] = self._make_env()
        self._unseeded[index] = True
        self._score[index], self._length_steps[index], self._life_steps[index] = 0.0, 0, 0

    def _seed_of(self, index: int) -> int:
        return environment_seed(self._seed, index, self._restarts[index])

    def _finish(self, index: int, terminated: bool) -> Episode:
        episode = Episode(
            score=float(self._score[index]),
            length_steps=int(self._length_steps[index]),
            terminated=terminated,
            truncated=not terminated,
            environment=index,
        )
        self._score[index], self._length_steps[index] = 0.0, 0
        return episode


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
