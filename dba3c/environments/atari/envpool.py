"""Atari on EnvPool's C++ vector environment, the alternative to ale-py's own (`atari_backend="envpool"`).

Needs: the extra `envpool` (`pip install "dba3c[envpool]"`). Observes, skips and scores as `atari` does. Its rewards and
lives come from the same ALE, but no-ops, FIRE and resizing are its own code, so games differ frame by frame. It does
not say how many frames the last step of a game ran: each step counts as the whole frame skip.
`python -m dba3c.benchmarks.environments` measures both.

Facts about EnvPool 1.2 this file rests on, each held by a test: arrays it returns are not written to again;
`max_episode_steps` counts agent steps, and unlike ale-py's limit it is reported without `game_over`; autoreset is
NEXT_STEP; `env_seed` takes one seed per environment but only when the pool is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ale_py import Action, ALEInterface, LoggerMode

from dba3c.environments.atari.view import ConsoleStep
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.identifiers import rom_path
from dba3c.errors import UserError


class EnvPoolConsoles:
    """`Consoles` on EnvPool."""

    def __init__(self, config: EnvironmentConfig, num_envs: int) -> None:
        self._task = config.env_id.removeprefix("ALE/")
        _check_installed(self._task)
        self._config = config
        self._num_envs = num_envs
        self._pool: Any = None
        actions = _action_set(config)
        self.num_actions = len(actions)
        self.fire_action = actions.index(Action.FIRE) if Action.FIRE in actions else None
        channels = config.frame_stack * (1 if config.grayscale else 3)
        self.observation_shape: tuple[int, ...] = (channels, config.screen_size, config.screen_size)

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Consoles.reset`."""
        self.close()
        self._pool = self._make_pool(seeds)
        observation, info = self._pool.reset()
        return observation, info["lives"]

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """See `Consoles.step`."""
        observation, reward, game_over, cut, info = self._pool.step(actions)
        frames = np.full(len(actions), self._config.frame_skip_range[0])
        return ConsoleStep(observation, reward, game_over, cut & ~game_over, info["lives"], frames)

    def close(self) -> None:
        """Join EnvPool's threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _make_pool(self, seeds: np.ndarray) -> Any:
        import envpool

        config = self._config
        skip = config.frame_skip_range[0]
        return envpool.make(
            self._task,
            env_type="gymnasium",
            num_envs=self._num_envs,
            num_threads=min(config.env_threads, self._num_envs),
            env_seed=[int(seed) for seed in seeds],
            max_episode_steps=-(-config.max_episode_frames // skip),
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_space,
            img_height=config.screen_size,
            img_width=config.screen_size,
            gray_scale=config.grayscale,
            stack_num=config.frame_stack,
            frame_skip=skip,
            noop_max=max(config.noop_max, 1),
            use_fire_reset=config.fire_on_reset,
            episodic_life=False,
            reward_clip=False,
        )


def _check_installed(task: str) -> None:
    try:
        import envpool
    except ImportError as error:
        raise UserError('atari_backend envpool is not installed: pip install "dba3c[envpool]"') from error
    if task not in envpool.list_all_envs():
        raise UserError(f"EnvPool has no {task}: use --atari-backend ale")


def _action_set(config: EnvironmentConfig) -> list[Action]:
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.loadROM(rom_path(config.env_id))
    return list(ale.getLegalActionSet() if config.full_action_space else ale.getMinimalActionSet())
