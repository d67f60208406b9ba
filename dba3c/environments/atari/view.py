"""What a worker sees of a vector of Atari games: the training or the evaluation view over the raw console.

The consoles (ale-py's, or our own with the random frame skip) step full games and give raw rewards and lives; whatever
differs between training and evaluation is decided here, once, in NumPy on [B] arrays:

- reward scaling and clipping, so that raw scores stay known;
- a lost life as `terminated` (`episodic_life`). ale-py's own episodic mode is off: it starts a new game at every lost
  life. Here the game simply goes on: the step after a lost life is an ordinary, valid step;
- FIRE in place of the agent's action after a lost life (`fire_on_life_loss`), with `valid` False for that step;
- the evaluation's guard against a player stuck on one action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from dba3c.environments.atari.consoles import AleConsoles, Consoles, RandomSkipConsoles
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import Games, Transition, environment_seeds
from dba3c.errors import UserError


class AtariVectorEnvironment:
    """A `VectorEnvironment` of one Atari game; see the module's docstring for what each view is."""

    def __init__(self, config: EnvironmentConfig, consoles: Consoles, seeds: np.ndarray, view: str) -> None:
        training = view == "training"
        self.num_envs = len(seeds)
        self.observation_space: Space[Any] = Box(0, 255, consoles.observation_shape, np.uint8)
        self.action_space: Space[Any] = Discrete(consoles.num_actions)
        self._consoles = consoles
        self._num_actions = consoles.num_actions
        self._seeds = seeds
        self._clip_reward, self._reward_scale = config.clips_reward, config.reward_scale
        self._episodic_life = config.episodic_life and training
        self._fire = np.int32(consoles.fire_action or 0)
        has_fire = consoles.fire_action is not None
        self._fire_on_life_loss = config.fire_on_life_loss and has_fire
        self._stuck_guard_steps = 0 if training or not has_fire else config.stuck_guard_steps
        self._fire_is_agents = not training  # an evaluation has no use for `valid`: its games are whole
        self._lives: np.ndarray | None = None

    def reset(self, seed: int | None = None) -> np.ndarray:
        """First observations [B, C, H, W] uint8 of new games; see `VectorEnvironment.reset`."""
        if seed is not None:
            self._seeds = environment_seeds(seed, self.num_envs)
        observation, self._lives = self._consoles.reset(self._seeds)
        self._resetting = np.zeros(self.num_envs, dtype=bool)  # the next step is the autoreset's
        self._must_fire = np.zeros(self.num_envs, dtype=bool)
        self._games = Games(self.num_envs)
        self._last_actions = np.full(self.num_envs, -1, dtype=np.int32)
        self._repeats = np.zeros(self.num_envs, dtype=np.int64)
        return observation

    def step(self, actions: np.ndarray) -> Transition:
        """One agent step of every game; see `VectorEnvironment.step`. `actions` int [B]."""
        actions = self._checked(actions)
        plays = ~self._resetting
        valid = plays.copy()
        if self._fire_on_life_loss and self._must_fire.any():
            actions = np.where(self._must_fire, self._fire, actions)
            if not self._fire_is_agents:
                valid &= ~self._must_fire
        if self._stuck_guard_steps:
            actions = self._unstick(actions)
        stepped = self._consoles.step(actions)
        finished = stepped.game_over | stepped.cut
        life_lost = (stepped.lives < self._lives) & (stepped.lives > 0) & ~self._resetting & ~finished
        self._lives, self._must_fire = stepped.lives, life_lost
        self._games.count(stepped.reward, plays)
        episodes = self._games.finish(np.flatnonzero(finished), stepped.game_over) if finished.any() else []
        self._resetting = finished
        reward = stepped.reward.astype(np.float32)
        if self._reward_scale != 1.0:
            reward *= np.float32(self._reward_scale)
        if self._clip_reward:
            np.clip(reward, -1.0, 1.0, out=reward)
        return Transition(
            observation=stepped.observation,
            reward=reward,
            terminated=stepped.game_over | life_lost if self._episodic_life else stepped.game_over,
            truncated=stepped.cut & ~stepped.game_over,
            valid=valid,
            episodes=episodes,
            gained=stepped.reward.astype(np.float64),
            frames=np.where(plays, stepped.frames, 0).astype(np.int64),
        )

    def close(self) -> None:
        """Stop the consoles' threads."""
        self._consoles.close()

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        """Actions as int32 [B]. ale-py waits for ever after an action outside the set, so none may reach it."""
        if self._lives is None:
            raise RuntimeError("reset() must come before step()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise UserError(f"actions must be integers [{self.num_envs}], not {actions.dtype} {list(actions.shape)}")
        if actions.min() < 0 or actions.max() >= self._num_actions:
            raise UserError(f"actions must be in [0, {self._num_actions}), not {sorted(set(actions.tolist()))}")
        return actions.astype(np.int32, copy=False)

    def _unstick(self, actions: np.ndarray) -> np.ndarray:
        """FIRE instead of the last of `stuck_guard_steps` equal actions in a row, and of those that follow it."""
        self._repeats = np.where(actions == self._last_actions, self._repeats + 1, 1)
        self._last_actions = actions
        return np.where(self._repeats >= self._stuck_guard_steps, self._fire, actions)


def make_atari(config: EnvironmentConfig, num_envs: int, seed: int, view: str) -> AtariVectorEnvironment:
    """The Atari environment `config` asks for, on the console that can play its protocol."""
    low, high = config.frame_skip_range
    consoles: Consoles
    if low != high:
        consoles = RandomSkipConsoles(config, num_envs)
    else:
        consoles = AleConsoles(config, num_envs)
    return AtariVectorEnvironment(config, consoles, environment_seeds(seed, num_envs), view)
