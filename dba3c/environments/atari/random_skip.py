"""Atari with a frame skip drawn anew at every agent step: the 2017 protocol, which no C++ vector environment plays.

Gym's <Game>-v0 repeated each action for 2, 3 or 4 frames, equally likely, showed the last one without max-pooling, and
repeated the previous action with probability 0.25 per frame; the 2017 system resized its RGB screen bilinearly to
84×84 and began games with a black history (its get_player and HistoryFramePlayer). The consoles are stepped one after
the other in this thread and their screens resized together: about 2,500 agent steps/s a core, RGB.
"""

from __future__ import annotations

import numpy as np
import torch
from ale_py import Action, ALEInterface, LoggerMode

from dba3c.environments.atari.view import ConsoleStep
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.identifiers import rom_path


class RandomSkipConsoles:
    """`Consoles` on single ALE interfaces."""

    def __init__(self, config: EnvironmentConfig, num_envs: int) -> None:
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._config = config
        self._rom_path = rom_path(config.env_id)
        self._consoles = [ALEInterface() for _ in range(num_envs)]
        for ale in self._consoles:
            ale.setFloat("repeat_action_probability", config.repeat_action_probability)
            ale.loadROM(self._rom_path)
        first = self._consoles[0]
        self._actions = list(first.getLegalActionSet() if config.full_action_space else first.getMinimalActionSet())
        self.num_actions = len(self._actions)
        self.fire_action = self._actions.index(Action.FIRE) if Action.FIRE in self._actions else None
        self._channels = 1 if config.grayscale else 3
        height, width = first.getScreenDims()
        self._screens = np.zeros((num_envs, height, width, self._channels), dtype=np.uint8)
        self.observation_shape: tuple[int, ...] = (
            self._channels * config.frame_stack,
            config.screen_size,
            config.screen_size,
        )

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Consoles.reset`."""
        self._generators = [np.random.default_rng(int(seed)) for seed in seeds]
        for ale, seed in zip(self._consoles, seeds, strict=True):
            ale.setInt("random_seed", int(seed))
            ale.loadROM(self._rom_path)
        everywhere = np.ones(len(self._consoles), dtype=bool)
        for index in range(len(self._consoles)):
            self._start_game(index)
        self._frames = np.zeros(len(self._consoles), dtype=np.int64)
        self._over = np.zeros(len(self._consoles), dtype=bool)
        self._stack = np.zeros((len(self._consoles), *self.observation_shape), dtype=np.uint8)
        return self._observe(everywhere), self._lives()

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """See `Consoles.step`."""
        started, before = self._over.copy(), self._frames.copy()
        reward = np.zeros(len(actions), dtype=np.float32)
        game_over = np.zeros(len(actions), dtype=bool)
        for index, action in enumerate(actions):
            if started[index]:
                self._start_game(index)
                self._frames[index] = 0
            else:
                reward[index], game_over[index] = self._play(index, self._actions[action])
        cut = (self._frames >= self._config.max_episode_frames) & ~game_over
        self._over = game_over | cut
        return ConsoleStep(self._observe(started), reward, game_over, cut, self._lives(), self._frames - before)

    def screen(self, index: int) -> np.ndarray:
        """What the screen of console `index` shows now, in its own size: uint8 [H, W, 3]."""
        return self._consoles[index].getScreenRGB()

    def close(self) -> None:
        """Let go of the consoles."""
        self._consoles = []

    def _play(self, index: int, action: Action) -> tuple[float, bool]:
        """One agent step: (raw reward, game over)."""
        ale, (low, high) = self._consoles[index], self._config.frame_skip_range
        reward = 0.0
        for _ in range(self._generators[index].integers(low, high + 1)):
            reward += ale.act(action)
            self._frames[index] += 1
            if ale.game_over() or self._frames[index] >= self._config.max_episode_frames:
                break
        return reward, ale.game_over()

    def _start_game(self, index: int) -> None:
        """A new game as ale-py's vector environment starts it: FIRE for a frame, then 0 to noop_max - 1 no-ops."""
        ale = self._consoles[index]
        ale.reset_game()
        fires = self._config.fire_on_reset and self.fire_action is not None
        if fires:
            ale.act(Action.FIRE)
        for _ in range(int(self._generators[index].integers(max(self._config.noop_max, 1))) - fires):
            ale.act(Action.NOOP)
            if ale.game_over():
                ale.reset_game()

    def _observe(self, started: np.ndarray) -> np.ndarray:
        """Stacked newest frames [B, channels × stack, H, W] in a new array; black history where a game `started`."""
        for index, ale in enumerate(self._consoles):
            if self._channels == 1:
                ale.getScreenGrayscale(self._screens[index, :, :, 0])
            else:
                ale.getScreenRGB(self._screens[index])
        planar = torch.from_numpy(self._screens).permute(0, 3, 1, 2)
        size = (self._config.screen_size, self._config.screen_size)
        frames = torch.nn.functional.interpolate(planar, size=size, mode="bilinear", align_corners=False)
        stack = np.empty_like(self._stack)
        stack[:, : -self._channels] = self._stack[:, self._channels :]
        stack[started, : -self._channels] = 0
        stack[:, -self._channels :] = frames.numpy()
        self._stack = stack
        return stack

    def _lives(self) -> np.ndarray:
        return np.array([ale.lives() for ale in self._consoles], dtype=np.int32)
