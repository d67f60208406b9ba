"""A stand-in for the module `deepmind_lab`, as its docs/users/python_api.md and python/dmlab_module.c describe it.

It checks what the real one checks (types of arguments, dtype and shape of actions, when what may be called), compiles
a "map" through the level cache at every reset, and ends an episode after its level's seconds at 60 frames a second.
"""

import numpy as np

EPISODE_S = 2
FRAMES_PER_SECOND = 60
NUM_ACTIONS = 7
runfiles = []
compiled = []  # keys of maps that no cache had


def set_runfiles_path(path):
    runfiles.append(path)


class Lab:
    """See the module's docstring. Maps come in five, so that a cache is hit."""

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        if not isinstance(level, str) or not isinstance(observations, list):
            raise TypeError("Lab() argument types")
        config = {} if config is None else config
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in config.items()):
            raise TypeError("config must hold strings")
        unknown = set(observations) - {"RGB_INTERLEAVED"}
        if unknown:
            raise ValueError(f"Unknown observation {unknown}")
        self.level, self.config, self.level_cache = level, config, level_cache
        self.height, self.width = int(config.get("height", "240")), int(config.get("width", "320"))
        self._running = False
        self._closed = False

    def reset(self, episode=-1, seed=None):
        if seed is not None and type(seed) is not int:
            raise ValueError(f"'seed' must be int or None, was '{type(seed).__name__}'.")
        self._generator = np.random.default_rng(seed)
        self._map = int(self._generator.integers(5))
        if self.level_cache is not None:
            self._load(f"{self.level}/{self.config.get('mixerSeed', '0')}/map {self._map}")
        self._frames, self._running = 0, True
        return True

    def _load(self, key):
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            pk3 = Path(folder) / "map.pk3"
            if self.level_cache.fetch(key, str(pk3)):
                assert pk3.read_text() == key
                return
            compiled.append(key)
            pk3.write_text(key)
            self.level_cache.write(key, str(pk3))

    def is_running(self):
        return self._running

    def num_steps(self):
        return self._frames

    def step(self, action, num_steps=1):
        if not isinstance(action, np.ndarray):
            raise TypeError("step() argument 1 must be numpy.ndarray")
        if not self._running:
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (NUM_ACTIONS,):
            raise ValueError(f"action must have shape ({NUM_ACTIONS})")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        self._frames += num_steps
        self._running = self._frames < EPISODE_S * FRAMES_PER_SECOND
        return float(action[3] == 1)  # one point a step for walking forward

    def observations(self):
        if not self._running:
            raise RuntimeError("Environment in wrong status for call to observations()")
        screen = np.full((self.height, self.width, 3), self._map, np.uint8)
        screen[0, 0, 0] = self._frames
        return {"RGB_INTERLEAVED": screen}

    def close(self):
        self._closed, self._running = True, False
