"""An Atari game of the evaluation view, filmed from the console's own screen in colour.

ale-py's vector environment, which makes the agent's observations, cannot show its screens. But a game is a function of
its seed and actions (tested: observation, reward, lives, frame by frame), so a second one runs in lock step with half
the frame skip and no resizing: its screens are the game's, flicker removed by the same max-pooling, 30 a second.
"""

from __future__ import annotations

import numpy as np
from ale_py import ALEInterface, LoggerMode
from ale_py.vector_env import AtariVectorEnv

from dba3c.environments.atari.consoles import AleConsoles, ConsoleStep, RandomSkipConsoles, rom_path
from dba3c.environments.atari.view import AtariVectorEnvironment
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.families import atari_games
from dba3c.environments.protocol import EnvironmentFailed, VectorEnvironment, environment_seeds

CONSOLE_FRAMES_PER_S = 60.0


class AtariCamera:
    """A `dba3c.recording.cameras.Camera`; see the module's docstring."""

    def __init__(self, config: EnvironmentConfig, seed: int) -> None:
        low, high = config.frame_skip_range
        self._consoles: TwinConsoles | RandomSkipConsoles
        if low == high:
            self._consoles = TwinConsoles(config)
            self.pictures_per_s = self._consoles.pictures_per_s
        else:
            self._consoles = RandomSkipConsoles(config, 1)
            self.pictures_per_s = CONSOLE_FRAMES_PER_S / config.frames_per_step
        self.environments: VectorEnvironment = AtariVectorEnvironment(
            config, self._consoles, environment_seeds(seed, 1), "evaluation"
        )
        ale = _console_of(config)
        actions = ale.getLegalActionSet() if config.full_action_space else ale.getMinimalActionSet()
        self.action_names = [action.name for action in actions]

    def pictures(self, observation: np.ndarray) -> list[np.ndarray]:
        """See `Camera.pictures`."""
        if isinstance(self._consoles, TwinConsoles):
            return self._consoles.pictures
        return [self._consoles.screen(0)]


class TwinConsoles:
    """`Consoles` of one game, and the same game again with its screens in colour."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._agents = AleConsoles(config, 1)
        self.num_actions = self._agents.num_actions
        self.fire_action = self._agents.fire_action
        self.observation_shape = self._agents.observation_shape
        frame_skip = config.frame_skip_range[0]
        picture_frames = 2 if frame_skip % 2 == 0 else 1
        self.pictures_per_s = CONSOLE_FRAMES_PER_S / picture_frames
        self.pictures: list[np.ndarray] = []
        self._pictures_per_step = frame_skip // picture_frames
        self._over = False
        height, width = _console_of(config).getScreenDims()
        self._screens = AtariVectorEnv(
            atari_games()[config.env_id],
            1,
            num_threads=1,
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_space,
            img_height=height,
            img_width=width,
            grayscale=False,
            stack_num=1,
            frameskip=picture_frames,
            noop_max=config.noop_max,
            use_fire_reset=config.fire_on_reset,
            reward_clipping=False,
        )

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `Consoles.reset`."""
        screen, _ = self._screens.reset(seed=seeds)
        self.pictures, self._over = [screen[0, 0]], False
        return self._agents.reset(seeds)

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """See `Consoles.step`.

        Raises:
            EnvironmentFailed: the two games are no longer the same one.
        """
        stepped = self._agents.step(actions)
        self.pictures, reward = [], 0.0
        for _ in range(1 if self._over else self._pictures_per_step):  # autoreset is one step in both
            screen, points, game_over, cut, info = self._screens.step(actions)
            self.pictures.append(screen[0, 0])
            reward += float(points[0])
            if game_over[0] or cut[0]:
                break
        twin = (reward, bool(game_over[0]), bool(cut[0]), int(info["lives"][0]))
        agents = (float(stepped.reward[0]), bool(stepped.game_over[0]), bool(stepped.cut[0]), int(stepped.lives[0]))
        if twin != agents:
            raise EnvironmentFailed(f"the pictures came apart from the agent's game: {twin} instead of {agents}")
        self._over = bool(game_over[0] or cut[0])
        return stepped

    def close(self) -> None:
        """Join the C++ threads of both."""
        self._agents.close()
        self._screens.close()


def _console_of(config: EnvironmentConfig) -> ALEInterface:
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.loadROM(rom_path(config.env_id))
    return ale
