"""DeepMind Lab, through the `deepmind_lab` Python module. Ids: `dmlab/rooms_watermaze`, `dmlab/lt_chasm`, …

Needs: `deepmind_lab`, built from its source with Bazel (PyPI has no wheel of it; the package `dmlab` there is another).
Observes: RGB uint8 [3, 72, 96]. Actions: the nine of IMPALA (Espeholt et al. 2018, table D.2). Frame skip: 4 of 60 a
second. Score: the level's rewards.

The API says that an episode ended, never why, and shows nothing after the end. Levels end by their clock, which no
observation shows, so an end is `truncated`: it bootstraps, from the last screen there was.

This adapter was run against a stand-in of the documented API (tests/dba3c/environments/fake_deepmind_lab.py), never
against the real module: see docs/environments.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError

_LOG = logging.getLogger(__name__)
HEIGHT, WIDTH = 72, 96
EVALUATION_MIXER_SEED = 0x600D5EED  # maps that training never sees (SEED RL)
# look left-right, look down-up, strafe, move, fire, jump, crouch
ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),  # forward
    (0, 0, 0, -1, 0, 0, 0),  # backward
    (0, 0, -1, 0, 0, 0, 0),  # strafe left
    (0, 0, 1, 0, 0, 0, 0),  # strafe right
    (-20, 0, 0, 0, 0, 0, 0),  # look left
    (20, 0, 0, 0, 0, 0, 0),  # look right
    (-20, 0, 0, 1, 0, 0, 0),  # look left, forward
    (20, 0, 0, 1, 0, 0, 0),  # look right, forward
    (0, 0, 0, 0, 1, 0, 0),  # fire
)
DMLAB30_THEMES = {"rooms", "language", "lasertag", "natlab", "skymaze", "psychlab", "explore"}
"""The first words of DMLab-30's levels, which no other level outside a folder has."""


class DmlabEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One level."""

    observation_space = Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    action_space = Discrete(len(ACTIONS))

    def __init__(self, level: str, frame_skip: int, settings: dict[str, str], level_cache: LevelCache | None) -> None:
        import deepmind_lab

        self._frame_skip = frame_skip
        self._actions = [np.array(action, dtype=np.intc) for action in ACTIONS]
        self._lab = deepmind_lab.Lab(
            level, ["RGB_INTERLEAVED"], config=settings, renderer="software", level_cache=level_cache
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode on the next seed of this environment's generator."""
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        self._screen = self._lab.observations()["RGB_INTERLEAVED"]
        return self._screen, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One action held for the frame skip."""
        reward = self._lab.step(self._actions[action], num_steps=self._frame_skip)
        ended = not self._lab.is_running()
        if not ended:  # observations() raises after the end
            self._screen = self._lab.observations()["RGB_INTERLEAVED"]
        return self._screen, float(reward), False, ended, {}

    def close(self) -> None:
        """End the level."""
        self._lab.close()


def dmlab_maker(config: EnvironmentConfig, view: str) -> Callable[[], DmlabEnv]:
    """What makes one copy of the level that `config` names; `UserError` where the module is missing."""
    try:
        import deepmind_lab
    except ImportError as error:
        raise UserError(
            f"{config.env_id} needs the module deepmind_lab, built from source: see docs/environments.md ({error})"
        ) from error
    if config.dmlab_home is not None:
        deepmind_lab.set_runfiles_path(config.dmlab_home)
    level = config.env_id.partition("/")[2]
    if level.split("_")[0] in DMLAB30_THEMES and "/" not in level:
        level = f"contributed/dmlab30/{level}"
    settings = {"width": str(WIDTH), "height": str(HEIGHT), "logLevel": "WARN"}
    if config.dmlab_dataset is not None:  # psychlab levels read their pictures there
        settings["datasetPath"] = config.dmlab_dataset
    if view == "evaluation":
        settings |= {"allowHoldOutLevels": "true", "mixerSeed": str(EVALUATION_MIXER_SEED)}
    cache = None if config.dmlab_level_cache is None else LevelCache(Path(config.dmlab_level_cache))
    return lambda: DmlabEnv(level, config.frame_skip_range[0], settings, cache)


class LevelCache:
    """The object that `deepmind_lab.Lab(level_cache=…)` asks: compiled maps on a directory that all actors share.

    A map takes seconds to compile and ms to copy. Many actors write at once, some die half-way, and a directory may be
    on a network file system. So a map is written under a name of its own and renamed, which is atomic within one file
    system: a reader finds all of a map or nothing. What one may not read counts as absent, and what cannot be written
    is not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path_of(self, key: str) -> Path:
        """Where the map of `key` lies. Keys are long and may hold any character, so their hash names the file."""
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest[2:]}.pk3"

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map of `key` to `pk3_path`; False where none can be had (Lab then compiles it and calls `write`)."""
        try:
            shutil.copyfile(self.path_of(key), pk3_path)
        except OSError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the map at `pk3_path` for `key`.

        Where that is refused (another user's directory, a disk that is full or only to be read) it costs a warning and,
        next time, a compilation: never the actor.
        """
        path = self.path_of(key)
        partial = path.parent / f".partial-{uuid.uuid4().hex}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pk3_path, partial)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(partial, path)
        except OSError as error:
            _LOG.warning("the level cache does not keep a map: %s", error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
