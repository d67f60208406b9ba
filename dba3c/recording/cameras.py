"""One environment played in the evaluation view, and the pictures that people see of it.

| environment                     | picture|
|--------------------------------|------------------------------------------------------------------------------------|
| Atari                           | the console's own screen in colour (mostly 160×210), never the agent's 84×84 view|
| with `render_mode="rgb_array"`  | its `render()`|
| whose observation is an image   | the observation|
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np

from dba3c.environments.atari.camera import AtariCamera
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import custom_maker, make_vector_environment, with_normalization
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment
from dba3c.environments.protocol import VectorEnvironment
from dba3c.errors import UserError

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
