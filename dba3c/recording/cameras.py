"""One environment played in the evaluation view, and the pictures that people see of it.

| environment                     | picture                                                                          |
|---------------------------------|----------------------------------------------------------------------------------|
| Atari                           | the console's own screen in colour (mostly 160×210), never the agent's 84×84 view |
| with `render_mode="rgb_array"`  | its `render()`                                                                   |
| whose observation is an image   | the observation                                                                  |

ale-py's vector environment, which makes the agent's observations, cannot show its screens. But a game is a function of
its seed and actions (tested: observation, reward, lives, frame by frame), so a second one runs in lock step with a
picture for every second frame (every frame where the frame skip is odd) and no resizing: its screens are the game's,
flicker removed by the same max-pooling, 30 a second (60).
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from dba3c.environments.atari import (
    AleConsoles,
    AtariVectorEnvironment,
    ConsoleStep,
    RandomSkipConsoles,
    console,
    native_consoles,
)
from dba3c.environments.config import FAMILIES, EnvironmentConfig
from dba3c.environments.factory import as_configured, make_vector_environment, maker_of
from dba3c.environments.normalization import NormalizedObservations
from dba3c.environments.protocol import EnvironmentFailed, VectorEnvironment, environment_seeds
from dba3c.errors import UserError
from dba3c.own_code import ANYTHING

CONSOLE_FRAMES_PER_S = 60.0
_DEFAULT_PICTURES_PER_S = 30.0


@dataclass(frozen=True)
class Camera:
    """One environment, and what it looks like."""

    environments: VectorEnvironment
    """Of one environment, evaluation view. Only the first game after its reset is filmed."""
    pictures_per_s: float
    """For play at the game's own speed."""
    action_names: list[str]
    """Of a Discrete action space, else empty."""
    pictures: Callable[[np.ndarray], list[np.ndarray]]
    """What the last reset or step showed: uint8 [H, W, 3] each; given what it returned, the observation [1, ...]."""


def make_camera(config: EnvironmentConfig, seed: int) -> Camera:
    """The camera that fits an environment; `seed` as in `make_vector_environment`.

    Raises:
        UserError: there is nothing to look at, or what draws it is not installed.
    """
    if config.family == "atari":
        return _of_console(config, seed)
    make_env = maker_of(config)  # of a registered one too: this has imported the module that registers it
    made: list[gymnasium.Env[Any, Any]] = []
    refused: list[UserError] = []

    def make_and_keep() -> gymnasium.Env[Any, Any]:
        try:
            made[:] = [make_env() if config.family == "custom" else _make_drawn(config.env_id)]
        except UserError as error:  # it takes no render_mode, say; what it shows may be a picture itself
            refused.append(error)
            made[:] = [make_env()]
        return made[0]  # a broken one is replaced: the newest is the one that plays

    can_draw = config.family in ("custom", "gymnasium")
    environments = make_vector_environment(config, 1, seed, "evaluation", make_and_keep if can_draw else None)
    draws = can_draw and made[0].render_mode == "rgb_array"
    if draws and config.family == "gymnasium" and "rgb_array" not in (made[0].metadata.get("render_modes") or ()):
        draws = not _is_picture(environments)  # it keeps what it is given, and says that it cannot do it
    if not draws and not _is_picture(environments):
        environments.close()
        no_picture = UserError(
            f"{config.env_id} cannot be filmed: it was made without render_mode='rgb_array' (which costs nothing until "
            "a game is filmed), and its observations are not pictures"
        )
        raise (refused or [no_picture])[0]
    frames_per_s = FAMILIES[config.family].frames_per_s
    fps = made[0].metadata.get("render_fps") if can_draw else frames_per_s and frames_per_s / config.frames_per_step
    actions = environments.action_space
    first = int(actions.start) if isinstance(actions, gymnasium.spaces.Discrete) else 0
    numbered = range(first, first + int(actions.n)) if isinstance(actions, gymnasium.spaces.Discrete) else ()
    return Camera(
        environments,
        pictures_per_s=float(fps or _DEFAULT_PICTURES_PER_S),
        action_names=[str(action) for action in numbered],
        pictures=(lambda observation: [_rendered(config.env_id, made[0])]) if draws else _shown(environments),
    )


def check_filmable(config: EnvironmentConfig) -> None:
    """Raise UserError where no picture comes: there is nothing to look at, or what draws it is not installed."""
    camera = make_camera(replace(config, normalize_observations=False), 0)
    try:
        camera.pictures(camera.environments.reset())
    finally:
        camera.environments.close()


def _make_drawn(env_id: str) -> gymnasium.Env[Any, Any]:
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # pygame's SDL takes SIGTERM, which then would end nothing
    if not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame looks for a screen, which nothing is shown on
    try:
        return gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True)  # as it was trained
    except ANYTHING as error:  # of a stranger's constructor
        raise UserError(f"{env_id} cannot be filmed: {_why(error)}") from error


def _rendered(env_id: str, env: gymnasium.Env[Any, Any]) -> np.ndarray:
    try:
        picture = np.asarray(env.render())
    except ANYTHING as error:  # a stranger's drawing, or its graphics library, may raise anything
        raise UserError(f"{env_id} cannot be drawn: {_why(error)}") from error
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise UserError(f"{env_id}: render() gave {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3]")
    return picture


def _shown(environments: VectorEnvironment) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Observations as pictures, before they were normalised: [1, C, H, W] with one or three channels → [H, W, 3]."""

    def pictures(observation: np.ndarray) -> list[np.ndarray]:
        raw = environments.raw if isinstance(environments, NormalizedObservations) else observation
        picture = np.moveaxis(raw[0], 0, -1)
        return [np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))]

    return pictures


def _why(error: BaseException) -> str:
    """What Gymnasium says of a package that is missing names an extra of its own, which ViZDoom's would not survive."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    if re.search("opengl|gladload|glfw", said, re.IGNORECASE) and "MUJOCO_GL" not in os.environ:
        said += " (MuJoCo draws without a screen where MUJOCO_GL is egl or osmesa)"
    return "pygame is not installed: pip install 'dba3c[classic-control]'" if "pygame" in said else said


def _is_picture(environments: VectorEnvironment) -> bool:
    """Whether what it is observed by can be shown."""
    space = environments.observation_space
    return space.dtype == np.uint8 and space.shape is not None and len(space.shape) == 3 and space.shape[0] in (1, 3)


def _of_console(config: EnvironmentConfig, seed: int) -> Camera:
    low, high = config.frame_skip_range
    consoles: TwinConsoles | RandomSkipConsoles
    if low == high:
        consoles = TwinConsoles(config)
        frames_per_picture: float = consoles.picture_frames
    else:
        consoles = RandomSkipConsoles(config, 1)
        frames_per_picture = config.frames_per_step
    environments = AtariVectorEnvironment(config, consoles, environment_seeds(seed, 1), "evaluation")
    return Camera(
        as_configured(config, environments, "evaluation"),
        pictures_per_s=CONSOLE_FRAMES_PER_S / frames_per_picture,
        action_names=[action.name for action in consoles.actions],
        pictures=lambda observation: consoles.pictures,
    )


class TwinConsoles(AleConsoles):
    """One game, and the same game again: `pictures` are its screens in colour since the last reset or step."""

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config, 1)
        frame_skip = config.frame_skip_range[0]
        self.picture_frames = 2 if frame_skip % 2 == 0 else 1
        self.pictures: list[np.ndarray] = []
        self._pictures_per_step = frame_skip // self.picture_frames
        self._over = False
        height, width = console(config).getScreenDims()
        colour = {"img_height": height, "img_width": width, "grayscale": False, "stack_num": 1}
        self._screens = native_consoles(config, 1, frameskip=self.picture_frames, **colour)

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `AleConsoles.reset`."""
        screen, _ = self._screens.reset(seed=seeds)
        self.pictures, self._over = [screen[0, 0]], False
        return super().reset(seeds)

    def step(self, actions: np.ndarray) -> ConsoleStep:
        """See `AleConsoles.step`.

        Raises:
            EnvironmentFailed: the two games are no longer the same one.
        """
        stepped = super().step(actions)
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
        super().close()
        self._screens.close()
