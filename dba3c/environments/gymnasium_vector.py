"""Any single `gymnasium.Env`, B of them in a loop: classic control, Box2D, MuJoCo, toy text and every other id.

Needs: what the id needs (`gymnasium[mujoco]`, `gymnasium[box2d]`). Observes: see `spaces`. Frame skip: 1 (as
registered). Score: the sum of rewards, or of `info["score_reward"]` where an environment with a shaped reward gives it,
with every step or with the last of every game.

An environment that raises, or returns what its space does not hold, is named with its index, seed and step, and started
anew a bounded number of times; the broken step is `truncated` (so the steps before it bootstrap from the last good
observation) and not `valid`. In `gymnasium.vector.SyncVectorEnv` it would take all others with it, unnamed.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.process_env import ProcessEnv
from dba3c.environments.protocol import EnvironmentFailed, Games, Transition, environment_seed, number
from dba3c.environments.spaces import ActionCodec, ObservationCodec
from dba3c.errors import UserError, warn_on_stderr
from dba3c.own_code import ANYTHING, one_line
from param_servers.timeouts import Restarts

RESTART_WINDOW_S = 3600.0
MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]


class LoopVectorEnvironment:
    """A `VectorEnvironment` that steps B `gymnasium.Env` objects one after the other in this thread.

    Args:
        seed: of them all, e.g. `worker_seed(run_seed, worker, incarnation)`.
    """

    def __init__(self, config: EnvironmentConfig, make_env: MakeEnv, num_envs: int, seed: int) -> None:
        self.num_envs = num_envs
        self._clip_reward, self._reward_scale = config.clips_reward, config.reward_scale
        self._frames_per_step = config.frame_skip_range[0]
        self._env_id, self._make_env, self._seed = config.env_id, make_env, seed
        self._envs: list[Any] = []  # None where nobody has taken a broken one's place
        self._failures: list[str] = []
        """Of resets that nobody was told yet."""
        self._restarts = [Restarts(config.environment_restarts, RESTART_WINDOW_S) for _ in range(num_envs)]
        self._unseeded = np.ones(num_envs, dtype=bool)  # whose next reset takes a seed: once in each one's life
        self._life_steps = np.zeros(num_envs, dtype=np.int64)  # since each was made, for failure lines
        try:
            self._envs.append(make_env())  # alone: what cannot be is said by one, which no others keep from its time
            self._observations = ObservationCodec(self._env_id, self._envs[0].observation_space)
            self._actions = ActionCodec(self._env_id, self._envs[0].action_space)
            for _ in range(num_envs - 1):
                another = make_env()
                if any(another is env for env in self._envs):
                    raise UserError(f"{self._env_id} gave the same object twice: it must make a new one at each call")
                self._envs.append(another)
        except ANYTHING as error:
            self.close()
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self._env_id} cannot be made: {one_line(error)}") from error
        self.observation_space: Space[Any] = self._observations.space
        self._batch_shape = (num_envs, *self._observations.space.shape)
        self.action_space = self._actions.space
        self._gives_score = False  # as one of them was seen to: their rewards are not the score
        self._last: np.ndarray | None = None  # the last good observations [B, ...]

    def reset(self) -> np.ndarray:
        """First observations [B, ...]; see `VectorEnvironment.reset`."""
        self._unseeded[:], self._life_steps[:] = True, 0
        self._games = Games(self.num_envs)
        self._resetting = np.zeros(self.num_envs, dtype=bool)
        observation = np.empty(self._batch_shape, self._observations.space.dtype)
        self._send_ahead(None)
        self._failures = []
        for index in range(self.num_envs):
            self._reset_one(index, observation[index], self._failures)
        self._last = observation
        return observation

    def step(self, actions: np.ndarray) -> Transition:
        """One agent step of every environment; see `VectorEnvironment.step`."""
        if self._last is None:
            raise RuntimeError("reset() must come before step()")
        actions = self._actions.check(actions, self.num_envs)
        observation = np.empty(self._batch_shape, self._observations.space.dtype)
        reward, raw = [0.0] * self.num_envs, [0.0] * self.num_envs  # raw: what counts as score
        terminated, truncated = [False] * self.num_envs, [False] * self.num_envs
        broken: dict[int, BaseException] = {}
        failures, self._failures = self._failures, []
        resetting = self._resetting
        taken = self._actions.read_all(actions)
        self._send_ahead(taken)
        shown: list[Any] = [None] * self.num_envs
        at_reset = resetting.tolist()
        for index, (env, action) in enumerate(zip(self._envs, taken, strict=True)):
            if at_reset[index]:
                shown[index] = observation[index]
                self._reset_one(index, shown[index], failures)
                continue
            try:
                answer = env.step(action)
            except ANYTHING as error:  # whatever a stranger's environment raises is named and bounded
                broken[index], shown[index] = error, self._last[index]
                continue
            try:
                shown[index], gained, ended_here, cut_here, info = answer
                terminated[index], truncated[index] = bool(ended_here), bool(cut_here)
                reward[index] = gained = number(gained)
                if "score_reward" in info:
                    raw[index] = number(info["score_reward"])
                    self._count_no_rewards(raw, index)
                elif not self._gives_score:
                    raw[index] = gained
            except ANYTHING as error:
                broken[index], shown[index] = _unreadable("step()", error), self._last[index]
        self._write(shown, observation, broken)
        valid = ~resetting
        self._life_steps += valid
        rewards = np.array(reward, dtype=np.float32)
        self._name_broken_numbers(observation, rewards, raw, broken)
        for index, why in broken.items():
            terminated[index], truncated[index], rewards[index], raw[index] = False, True, 0.0, 0.0
            observation[index] = self._last[index]
            valid[index] = False
            self._restart(index, why, failures)
        gained = np.array(raw, dtype=np.float64)
        self._games.count(gained, valid)
        ended, cut = np.array(terminated, dtype=bool), np.array(truncated, dtype=bool)
        self._resetting = ended | cut
        episodes = self._games.finish(np.flatnonzero(self._resetting), ended) if self._resetting.any() else []
        episodes = [episode for episode in episodes if episode.environment not in broken]  # those are no whole games
        self._last = observation
        if self._reward_scale != 1.0:
            rewards *= np.float32(self._reward_scale)
        if self._clip_reward:
            np.clip(rewards, -1.0, 1.0, out=rewards)
        frames = valid * np.int64(self._frames_per_step)
        cut &= ~ended
        return Transition(observation, rewards, ended, cut, valid, resetting, episodes, gained, frames, failures)

    def close(self) -> None:
        """Close every environment."""
        envs, self._envs = self._envs, []
        for index, env in enumerate(envs):
            try:
                if env is not None:
                    env.close()
            except ANYTHING as error:  # a stranger's again: nothing more is wanted of it, and the others are closed
                warn_on_stderr(f"{self._env_id} environment {index} did not close: {one_line(error)}")

    def _send_ahead(self, actions: list[Any] | None) -> None:
        """Let environments that are processes start on this step, or without actions on their reset, all at once."""
        for index, env in enumerate(self._envs):
            if not isinstance(env, ProcessEnv):
                return
            if actions is None or self._resetting[index]:
                env.send_reset(self._seed_for_reset(index))
            else:
                env.send_step(actions[index])

    def _count_no_rewards(self, raw: list[float], index: int) -> None:
        """Environment `index` has told a score: what the games, and this step's others, have gained before was none."""
        if not self._gives_score:
            self._gives_score, raw[:index] = True, [0.0] * index
            self._games.forget_scores()

    def _write(self, shown: list[Any], observation: np.ndarray, broken: dict[int, BaseException]) -> None:
        """Put what was shown into `observation` [B, ...], and add to `broken` whose does not fit."""
        if self._observations.write_all(shown, observation):
            return
        for index in np.flatnonzero(~self._resetting):
            try:
                self._observations.write(shown[index], observation[index])
            except ANYTHING as error:  # as in step: a stranger's observation may be anything
                broken.setdefault(int(index), error)

    def _name_broken_numbers(
        self, observation: np.ndarray, rewards: np.ndarray, raw: list[float], broken: dict[int, BaseException]
    ) -> None:
        """Add to `broken` whose observation, reward or score is no finite number; one look at all of them."""
        for what, numbers, total in (("reward", rewards, rewards.sum()), ("score_reward", raw, sum(raw))):
            if not math.isfinite(total):
                for index, given in enumerate(numbers):
                    if not math.isfinite(given):
                        broken.setdefault(index, ValueError(f"{what} {given}"))
        if self._observations.may_be_broken(observation):
            for index in range(self.num_envs):
                try:
                    self._observations.check_finite(observation[index])
                except ValueError as error:
                    broken.setdefault(index, error)

    def _reset_one(self, index: int, row: np.ndarray, failures: list[str]) -> None:
        """Start a new game; an environment that cannot is restarted while it may be."""
        while True:
            try:
                answer = self._envs[index].reset(seed=self._seed_for_reset(index))
                try:
                    observation, _ = answer
                except ANYTHING as error:
                    raise _unreadable("reset()", error) from error
                self._observations.write(observation, row)
                self._observations.check_finite(row)
                self._unseeded[index] = False
                return
            except ANYTHING as error:  # as in step
                self._restart(index, error, failures)

    def _seed_of(self, index: int) -> int:
        """Another one after each restart."""
        return environment_seed(self._seed, index, self._restarts[index].total)

    def _seed_for_reset(self, index: int) -> int | None:
        return self._seed_of(index) if self._unseeded[index] else None

    def _restart(self, index: int, error: BaseException, failures: list[str]) -> None:
        """Replace an environment that broke by `error` by a new one with the next seed.

        One line for each attempt is added to `failures`: that a new one cannot be made is one more failure. Raises
        `EnvironmentFailed` when no attempt is left.
        """
        self._count(index, error, failures)
        broken, self._envs[index] = self._envs[index], None
        try:
            broken.close()
        except ANYTHING as close_error:  # it is broken already; the line says that it did not close
            failures[-1] += f" (closing it raised {type(close_error).__name__})"
        while self._envs[index] is None:
            self._unseeded[index], self._life_steps[index] = True, 0
            try:
                self._envs[index] = self._make_env()
            except ANYTHING as making:  # whatever a stranger's constructor raises is named and bounded
                self._count(index, making, failures)

    def _count(self, index: int, error: BaseException, failures: list[str]) -> None:
        """One restart more for environment `index`, or `EnvironmentFailed`; the line counts the reset as step 0."""
        restarts, who = self._restarts[index], f"{self._env_id} environment {index}"
        line = f"{who} (seed {self._seed_of(index)}, step {self._life_steps[index]}): {one_line(error)}"
        if not restarts.take():
            failed = EnvironmentFailed(f"{line}; given up after {restarts.most} restarts")
            failed.failures = failures
            raise failed from error
        failures.append(f"{line}; restart {restarts}")
        warn_on_stderr(failures[-1])


def _unreadable(answer: str, error: BaseException) -> ValueError:
    told = ValueError(f"what {answer} returned: {error}")
    told.__cause__ = error
    return told
