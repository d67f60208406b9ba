"""One environment played in the evaluation view, and the pictures that people see of it.

| environment                     | picture|
|--------------------------------|------------------------------------------------------------------------------------|
| Atari                           | the console's own screen in colour (mostly 160×210), never the agent's 84×84 view|
| with `render_mode="rgb_array"`  | its `render()`|
| whose observation is an image   | the observation|
"""

from __future__ import annotations

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
    if config.family == "custom":
        return RenderCamera(config, custom_maker(config, "evaluation"), seed)
    if config.family == "gymnasium":
        return RenderCamera(config, lambda: _make_drawn(config.env_id), seed)
    return ObservationCamera(make_vector_environment(config, 1, seed, view="evaluation"), config.env_id)


class RenderCamera:
    """An environment that draws itself."""

    def __init__(self, config: EnvironmentConfig, make_env: Callable[[], gymnasium.Env[Any, Any]], seed: int) -> None:
        self._env_id = config.env_id

        def make_and_keep() -> gymnasium.Env[Any, Any]:
            self._env = make_env()  # a broken one is replaced: the newest is the one that plays
            return self._env

        environments = LoopVectorEnvironment(config, make_and_keep, 1, seed)
        self.environments = with_normalization(config, environments, "evaluation")
        self.pictures_per_s = float(self._env.metadata.get("render_fps") or _DEFAULT_PICTURES_PER_S)
        self.action_names = _numbered_actions(self.environments)
        self._draws = self._env.render_mode == "rgb_array"
        if not self._draws:
            _check_is_picture(self.environments, self._env_id)

    def pictures(self, observation: np.ndarray) -> list[np.ndarray]:
        """See `Camera.pictures`."""
        if not self._draws:
            return [_as_picture(observation)]
        try:
            picture = np.asarray(self._env.render())
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"{self._env_id} cannot be drawn: {' '.join(str(error).split())}") from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(f"{self._env_id}: render() gave {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3]")
        return [picture]


class ObservationCamera:
    """An environment whose observation is what there is to see."""

    def __init__(self, environments: VectorEnvironment, env_id: str) -> None:
        self.environments = environments
        self.pictures_per_s = _DEFAULT_PICTURES_PER_S
        self.action_names = _numbered_actions(environments)
        _check_is_picture(environments, env_id)

    def pictures(self, observation: np.ndarray) -> list[np.ndarray]:
        """See `Camera.pictures`."""
        return [_as_picture(observation)]


def _make_drawn(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id, render_mode="rgb_array")
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise UserError(f"{env_id} cannot be filmed: {' '.join(str(error).split())}") from error


def _numbered_actions(environments: VectorEnvironment) -> list[str]:
    space = environments.action_space
    return [str(action) for action in range(int(space.n))] if isinstance(space, gymnasium.spaces.Discrete) else []


def _check_is_picture(environments: VectorEnvironment, env_id: str) -> None:
    space = environments.observation_space
    if space.dtype != np.uint8 or space.shape is None or len(space.shape) != 3 or space.shape[0] not in (1, 3):
        environments.close()
        raise UserError(
            f"{env_id} cannot be filmed: it was made without render_mode='rgb_array' (which costs nothing until "
            "a game is filmed), and its observations are not pictures"
        )


def _as_picture(observation: np.ndarray) -> np.ndarray:
    """[1, C, H, W] with one or three channels → [H, W, 3]."""
    picture = np.moveaxis(observation[0], 0, -1)
    return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
