"""ViZDoom: 3-D scenarios that anyone can install, headless. Ids: `vizdoom/basic`, `vizdoom/health_gathering`, …

Needs: the extra `vizdoom` (`pip install "dba3c[vizdoom]"`; wheels, no display). Each game is a process of its own.
Observes: RGB uint8 [3, 72, 96], one frame, without the status bar. Actions: do nothing, or hold one of the scenario's
buttons. Frame skip: 4 tics (35 tics are a second). Score: the scenario's reward, e.g. basic gives 101 for the monster,
−5 for a missed shot and −1 a tic.

The time limit is kept here, not by the engine, whose last screen is gone once it has ended a game: so a game that ran
out of time is `truncated` and its last observation is the true one.
"""

import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from dba3c.environments.config import EnvironmentConfig, close_names
from dba3c.errors import UserError

HEIGHT, WIDTH = 72, 96


class VizdoomEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One scenario."""

    observation_space = Box(0, 255, (3, HEIGHT, WIDTH), np.uint8)

    def __init__(self, scenario_file: Path, frame_skip: int) -> None:
        import vizdoom

        self._frame_skip = frame_skip
        self._game = vizdoom.DoomGame()
        self._game.load_config(str(scenario_file))
        # the engine writes its settings to one file in the current directory unless told otherwise, every engine's
        self._scratch = tempfile.TemporaryDirectory(prefix="dba3c-vizdoom-")
        self._game.set_doom_config_path(str(Path(self._scratch.name) / "vizdoom.ini"))
        self._let_die_with_this_process(Path(vizdoom.__file__).with_name("vizdoom"))
        self._game.set_window_visible(False)
        self._game.set_mode(vizdoom.Mode.PLAYER)
        self._game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        self._game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self._limit_tics = self._game.get_episode_timeout()
        self._game.set_episode_timeout(0)
        buttons = [button for button in self._game.get_available_buttons() if not button.name.endswith("_DELTA")]
        self._game.set_available_buttons(buttons)
        self._holds = [[0] * len(buttons), *np.eye(len(buttons), dtype=int).tolist()]
        self.action_space = Discrete(len(self._holds))
        self._screen = np.zeros(self.observation_space.shape, dtype=np.uint8)

    def _let_die_with_this_process(self, engine: Path) -> None:
        """It ignores its parent's end, and SIGTERM: of each worker that was killed one would be left. Where no setpriv
        can do it (before util-linux 2.33), or nothing may be run from the scratch folder, one is."""
        script, start = Path(self._scratch.name) / "engine", f'{shlex.quote(str(engine))} "$@"'
        dies = "setpriv --pdeathsig KILL"
        script.write_text(f"#!/bin/sh\n{dies} true 2>/dev/null && exec {dies} {start}\nexec {start}\n")
        script.chmod(0o700)
        if os.access(script, os.X_OK):
            self._game.set_vizdoom_path(str(script))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new game; the engine starts at the first, and anew for every seed.

        A running engine takes a seed too, but what it has played already changes the games that follow.
        """
        if seed is not None:
            self._game.close()
            self._game.set_seed(seed)
        if not self._game.is_running():
            self._game.init()
        self._game.new_episode()
        self._tics = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold one button for the frame skip."""
        tics = self._frame_skip
        if self._limit_tics:
            tics = min(tics, self._limit_tics - self._tics)
        reward = self._game.make_action(self._holds[action], tics)
        self._tics += tics
        terminated = self._game.is_episode_finished()
        truncated = bool(self._limit_tics) and self._tics >= self._limit_tics and not terminated
        return self._observe(), reward, terminated, truncated, {}

    def close(self) -> None:
        """End the engine's process."""
        self._game.close()
        self._scratch.cleanup()
        with contextlib.suppress(OSError):  # the engine also makes this empty folder in the current directory
            os.rmdir("_vizdoom")

    def _observe(self) -> np.ndarray:
        """The screen, resized; after the end, which shows none, the last one."""
        state = self._game.get_state()
        if state is not None:
            planes = torch.from_numpy(state.screen_buffer).permute(2, 0, 1)[None]
            resized = torch.nn.functional.interpolate(
                planes, size=(HEIGHT, WIDTH), mode="bilinear", align_corners=False, antialias=True
            )
            self._screen = resized[0].contiguous().numpy()
        return self._screen


def vizdoom_maker(config: EnvironmentConfig) -> Callable[[], VizdoomEnv]:
    """What makes one game of the scenario that `config` names; `UserError` where there is none."""
    try:
        import vizdoom
    except ImportError as error:
        raise UserError(f'{config.env_id} needs ViZDoom: pip install "dba3c[vizdoom]"') from error
    scenario = config.env_id.partition("/")[2]
    file = Path(vizdoom.scenarios_path) / f"{scenario}.cfg"
    if not file.is_file() or "/" in scenario:
        known = sorted(path.stem for path in Path(vizdoom.scenarios_path).glob("*.cfg"))
        raise UserError(f"unknown ViZDoom scenario {config.env_id}{close_names(scenario, known, 'vizdoom/')}")
    return lambda: VizdoomEnv(file, config.frame_skip_range[0])
