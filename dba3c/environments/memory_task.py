"""A task that needs memory and nothing else: a cue is shown once, and asked for at the end.

    id `dba3c/MemoryCue-v0`; options `cues`, `delay_steps`

Without memory no policy does better than chance, a mean score of 0; with it the score is 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MEMORY_TASK_ID = "dba3c/MemoryCue-v0"


class MemoryCue(gymnasium.Env[np.ndarray, np.int64]):
    """Observation [cues + 1] float32: the cue, one-hot, at first; then zeros; at the question a 1 in the last place.

    The action at the question is the answer: reward 1 when it names the cue, −1/(cues − 1) otherwise, and the episode
    terminates. All other rewards are 0. An episode lasts ``delay_steps + 2`` steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own declaration

    def __init__(self, cues: int = 2, delay_steps: int = 8) -> None:
        if cues < 2 or delay_steps < 0:
            raise ValueError(f"needs at least 2 cues and a delay of 0 or more, got {cues} and {delay_steps}")
        self.cues = cues
        self.delay_steps = delay_steps
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)
        self._cue = 0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """See gymnasium."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.cues))
        self._step = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        """See gymnasium."""
        asked = self._step == self.delay_steps + 1
        reward = 0.0
        if asked:
            reward = 1.0 if int(action) == self._cue else -1.0 / (self.cues - 1)
        self._step += 1
        return self._observation(), reward, asked, False, {}

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.cues + 1, dtype=np.float32)
        if self._step == 0:
            observation[self._cue] = 1.0
        elif self._step == self.delay_steps + 1:
            observation[-1] = 1.0
        return observation


def register_memory_task() -> None:
    """Make ``gymnasium.make("dba3c/MemoryCue-v0")`` work; registering twice is fine."""
    if MEMORY_TASK_ID not in gymnasium.registry:
        gymnasium.register(MEMORY_TASK_ID, entry_point="dba3c.environments.memory_task:MemoryCue")
