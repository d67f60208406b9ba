"""Google Research Football. Ids: `football/academy_empty_goal_close`, `football/11_vs_11_easy_stochastic`, …

Needs: gfootball 2.10.2, which has no wheel: `launch/install/football.sh VENV` builds it once (6 minutes) and keeps it.
Observes: `extracted`, the "super mini map" uint8 [16, 72, 96] (left team, right team, ball, active player; the last 4
frames), binary, larger with `football_map`; or `simple115v2`, float32 [115]. Actions: 19. Frame skip: 1 (one step is
0.1 s of play). Reward: goals, +1 or −1, and with `scoring,checkpoints` up to 1 for bringing the ball to the goal in
tenths; every score counts goals only.

gfootball has the old four-value `step`, whose `done` does not say why. A game that ends with its clock at 0 and no goal
in that step is `truncated`; a goal, the ball out of play or its loss, where the scenario ends on it, is `terminated`.
"""

import contextlib
import importlib
import io
import logging
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from dba3c.environments.config import FOOTBALL_FRAMES, EnvironmentConfig, close_names
from dba3c.errors import UserError

MAP_SIZES = {"small": (96, 72), "medium": (120, 90), "large": (144, 108)}  # (width, height) in cells
PLANES = 4
"""Of one frame."""
_BUILD = Path(__file__).parents[2] / "launch" / "install" / "football.sh"


class FootballEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One player (the active one) of the left team in one scenario."""

    def __init__(self, scenario: str, representation: str, map_size: tuple[int, int], rewards: str) -> None:
        create_environment = _import_quietly("gfootball.env").create_environment
        is_map = representation == "extracted"
        self._env = create_environment(
            env_name=scenario,
            representation=representation,
            stacked=False,  # here, frame by frame: gfootball interleaves the frames' planes
            rewards=rewards,
            channel_dimensions=map_size,
            render=False,
        )
        self._config = self._env.unwrapped._config
        width, height = map_size
        self.observation_space = (
            Box(0, 255, (PLANES * FOOTBALL_FRAMES, height, width), np.uint8)
            if is_map
            else Box(-np.inf, np.inf, (115,), np.float32)
        )
        self.action_space = Discrete(int(self._env.action_space.n))
        self._frames = np.zeros(self.observation_space.shape, np.uint8) if is_map else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new game on the next seed of this environment's generator (gfootball would take Python's global one)."""
        super().reset(seed=seed)
        engine_seed = int(self.np_random.integers(2**31 - 1))
        self._config.update({"game_engine_random_seed": engine_seed, "reverse_team_processing": bool(engine_seed % 2)})
        return self._observe(self._env.reset(), is_first=True), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One tenth of a second; `info["score_reward"]` is the goal difference of this step."""
        observation, reward, done, info = self._env.step(action)
        goals = float(info["score_reward"])
        timed_out = done and goals == 0 and self._env.unwrapped.observation()[0]["steps_left"] == 0
        return self._observe(observation), float(reward), done and not timed_out, timed_out, {"score_reward": goals}

    def _observe(self, shown: Any, is_first: bool = False) -> np.ndarray:
        """The numbers as they are; of a map [H, W, 4] the planes [16, H, W] of the last frames, the newest last."""
        if self._frames is None:
            return np.asarray(shown)
        newest = np.moveaxis(shown, 2, 0)
        older = [newest] * (FOOTBALL_FRAMES - 1) if is_first else [self._frames[PLANES:]]
        self._frames = np.concatenate([*older, newest])
        return self._frames

    def close(self) -> None:
        """End the engine."""
        self._env.close()


def football_maker(config: EnvironmentConfig) -> Callable[[], FootballEnv]:
    """What makes one game of the scenario that `config` names; `UserError` where there is none."""
    try:
        scenarios = _import_quietly("gfootball.scenarios")
    except ImportError as error:
        raise UserError(f"{config.env_id} needs gfootball ({error}): run {_BUILD} VENV") from error
    scenario = config.env_id.partition("/")[2]
    known = sorted(module.name for module in pkgutil.iter_modules(scenarios.__path__) if not module.ispkg)
    if scenario not in known:
        raise UserError(f"unknown football scenario {config.env_id}{close_names(scenario, known, 'football/')}")
    map_size = MAP_SIZES[config.football_map]
    return lambda: FootballEnv(scenario, config.football_observation, map_size, config.football_rewards)


def _import_quietly(name: str) -> Any:
    """A module of gfootball, without what the old gym prints about its age and of every wrapper."""
    with contextlib.redirect_stderr(io.StringIO()):
        module = importlib.import_module(name)
        importlib.import_module("gym").logger.set_level(logging.ERROR)
    return module
