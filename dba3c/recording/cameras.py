"""One environment played in the evaluation view, and the pictures that people see of it.

| environment                     | picture|
|--------------------------------|------------------------------------------------------------------------------------|
| Atari                           | the console's own screen in colour (mostly 160×210), never the agent's 84×84 view|
| with `render_mode="rgb_array"`  | its `render()`|
| whose observation is an image   | the observation|

ale-py's vector environment, which makes the agent's observations, cannot show its screens. But a game is a function of
its seed and actions (tested: observation, reward, lives, frame by frame), so a second one runs in lock step with half
the frame skip and no resizing: its screens are the game's, flicker removed by the same max-pooling, 30 a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
from ale_py import ALEInterface, LoggerMode
from ale_py.vector_env import AtariVectorEnv

from dba3c.environments.atari import (
    AleConsoles,
    AtariVectorEnvironment,
    ConsoleStep,
    RandomSkipConsoles,
    rom_path,
)
from dba3c.environments.config import EnvironmentConfig, atari_games
from dba3c.environments.factory import custom_maker, make_vector_environment, with_normalization
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.protocol import EnvironmentFailed, VectorEnvironment, environment_seeds
from dba3c.errors import UserError

CONSOLE_FRAMES_PER_S = 60.0
_DEFAULT_PICTURES_PER_S = 30.0


class Camera(Protocol):
    """One environment, and what it looks like."""

    environments: VectorEnvironment
    """Of one environment, evaluation view. Only the first game after its reset is filmed."""
    pictures_per_s: float
    """For play at the game's own speed."""
    action_names: list[str]
    """Of a Discrete action space, else empty."""

    def pictures(self, observation: np.ndarray) -> list[np.ndarray]:
        """What the last reset or step showed: uint8 [H, W, 3] each. `observation` [1, ...] is what it returned."""
        ...


def make_camera(config: EnvironmentConfig, seed: int) -> Camera:
    """The camera that fits an environment; `seed` as in `make_vector_environment`.

    Raises:
        UserError: there is nothing to look at, or what draws it is not installed.
    """
    if config.family == "atari":
        return AtariCamera(config, seed)
    if config.family not in ("custom", "gymnasium"):
        return EnvironmentCamera(config.env_id, make_vector_environment(config, 1, seed, view="evaluation"))
    make_env = custom_maker(config, "evaluation") if config.family == "custom" else lambda: _make_drawn(config.env_id)
    made: list[gymnasium.Env[Any, Any]] = []

    def make_and_keep() -> gymnasium.Env[Any, Any]:
        made[:] = [make_env()]  # a broken one is replaced: the newest is the one that plays
        return made[0]

    environments = LoopVectorEnvironment(config, make_and_keep, 1, seed)
    return EnvironmentCamera(
        config.env_id, with_normalization(config, environments, "evaluation"), drawn=lambda: made[0]
    )


class EnvironmentCamera:
    """An environment that draws itself, or else one whose observation is what there is to see.

    Args:
        environments: of one environment, evaluation view.
        drawn: gives the environment that plays; None where only observations can be seen.
    """

    def __init__(
        self, env_id: str, environments: VectorEnvironment, drawn: Callable[[], gymnasium.Env[Any, Any]] | None = None
    ) -> None:
        self.environments = environments
        self._env_id = env_id
        self._drawn = drawn if drawn is not None and drawn().render_mode == "rgb_array" else None
        fps = drawn().metadata.get("render_fps") if drawn is not None else None
        self.pictures_per_s = float(fps or _DEFAULT_PICTURES_PER_S)
        actions = environments.action_space
        numbered = range(int(actions.n)) if isinstance(actions, gymnasium.spaces.Discrete) else ()
        self.action_names = [str(action) for action in numbered]
        if self._drawn is None:
            _check_is_picture(environments, env_id)

    def pictures(self, observation: np.ndarray) -> list[np.ndarray]:
        """See `Camera.pictures`."""
        if self._drawn is None:  # [1, C, H, W] with one or three channels → [H, W, 3]
            picture = np.moveaxis(observation[0], 0, -1)
            return [np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))]
        try:
            picture = np.asarray(self._drawn().render())
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"{self._env_id} cannot be drawn: {_why(error)}") from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(f"{self._env_id}: render() gave {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3]")
        return [picture]


def _make_drawn(env_id: str) -> gymnasium.Env[Any, Any]:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen, which nothing is shown on
    try:
        return gymnasium.make(env_id, render_mode="rgb_array")
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise UserError(f"{env_id} cannot be filmed: {_why(error)}") from error


def _why(error: Exception) -> str:
    """What Gymnasium says of a package that is missing names an extra of its own, which ViZDoom's would not survive."""
    said = " ".join(str(error).split())
    return "pygame is not installed: pip install 'dba3c[classic-control]'" if "pygame" in said else said


def _check_is_picture(environments: VectorEnvironment, env_id: str) -> None:
    space = environments.observation_space
    if space.dtype != np.uint8 or space.shape is None or len(space.shape) != 3 or space.shape[0] not in (1, 3):
        environments.close()
        raise UserError(
            f"{env_id} cannot be filmed: it was made without render_mode='rgb_array' (which costs nothing until "
            "a game is filmed), and its observations are not pictures"
        )


class AtariCamera:
    """A `Camera` on the console's own screen."""

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
