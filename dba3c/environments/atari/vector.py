"""Atari on ale-py's native vector environment (C++ threads): all games of ale-py, about 2,000 agent steps/s a core.

Needs: `ale-py` (its wheel holds the ROMs). Observes: uint8 [frame_stack, 84, 84] gray, or [3 × frame_stack, 84, 84]
RGB (frame by frame, oldest first). Frame skip: 4. Score: the game's own points, whole game. Stop scores: `stop_scores`.

Facts about ale-py 0.12 this file rests on (its src/ale/vector), each held by a test:
- every `recv` allocates new arrays and hands them over, so observations may be kept without a copy;
- `episodic_life=True` resets the whole game at a lost life, and `life_loss_info=True` hides a frame limit that falls on
  a lost life; both stay off and lost lives are read from `info["lives"]`;
- rewards are clipped there only with `reward_clipping=True`: off;
- FIRE on reset lasts one frame, so sticky actions swallow it once in four games;
- an action outside the set makes `recv` wait for ever: `AtariVectorEnvironment` checks them all.
"""

from __future__ import annotations

import numpy as np
from ale_py import Action
from ale_py.vector_env import AtariVectorEnv

from dba3c.environments.atari.view import AtariVectorEnvironment, Consoles, ConsoleStep
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.identifiers import atari_games
from dba3c.environments.seeding import environment_seeds


class AleConsoles:
    """`Consoles` on ale-py's vector environment."""

    def __init__(self, config: EnvironmentConfig, num_envs: int) -> None:
        self._native = AtariVectorEnv(
            atari_games()[config.env_id],
            num_envs,
            num_threads=min(config.env_threads, num_envs),
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_space,
            img_height=config.screen_size,
            img_width=config.screen_size,
            grayscale=config.grayscale,
            stack_num=config.frame_stack,
            frameskip=config.frame_skip_range[0],
            noop_max=config.noop_max,
            use_fire_reset=config.fire_on_reset,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
        )
        actions = self._native.ale.get_action_set()
        self.num_actions = len(actions)
        self.fire_action = actions.index(Action.FIRE) if Action.FIRE in actions else None
        channels = config.frame_stack * (1 if config.grayscale else 3)
        self.observation_shape: tuple[int, ...] = (channels, config.screen_size, config.screen_size)
        self._grayscale = config.grayscale

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Consoles.reset`."""
        observation, info = self._native.reset(seed=seeds)
        self._at_frame = info["episode_frame_number"]
        return self._channels_first(observation), info["lives"]

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """See `Consoles.step`."""
        observation, reward, game_over, cut, info = self._native.step(actions)
        before, self._at_frame = self._at_frame, info["episode_frame_number"]
        frames = self._at_frame - before
        return ConsoleStep(self._channels_first(observation), reward, game_over, cut, info["lives"], frames)

    def close(self) -> None:
        """Join the C++ threads."""
        self._native.close()

    def _channels_first(self, observation: np.ndarray) -> np.ndarray:
        """[B, stack, H, W] as it is; RGB's [B, stack, H, W, 3] to [B, 3 × stack, H, W], which costs a copy."""
        if self._grayscale:
            return observation
        planes = np.moveaxis(observation, -1, 2)
        return np.ascontiguousarray(planes).reshape(len(observation), *self.observation_shape)


def make_atari(config: EnvironmentConfig, num_envs: int, seed: int, view: str) -> AtariVectorEnvironment:
    """The Atari environment `config` asks for, on the console that can play its protocol."""
    low, high = config.frame_skip_range
    consoles: Consoles
    if low != high:
        from dba3c.environments.atari.random_skip import RandomSkipConsoles

        consoles = RandomSkipConsoles(config, num_envs)
    else:
        consoles = AleConsoles(config, num_envs)
    return AtariVectorEnvironment(config, consoles, environment_seeds(seed, num_envs), view)
