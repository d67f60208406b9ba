"""Games of one's own for the tests: `tests.integration.games:make_raising` and the like."""

import multiprocessing
import signal
import subprocess
import sys

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Walk right for a reward; 20 steps long. It collapses from step `trouble_at` on, counted over all games."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, trouble_at: int | None = None) -> None:
        self.trouble_at, self.steps_ever = trouble_at, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps_ever += 1
        reward = float(action)
        if self.trouble_at is not None and self.steps_ever >= self.trouble_at:
            raise RuntimeError("the corridor has collapsed")
        observation = np.array([self.t / 20, 0.0], np.float32)
        return observation, reward, self.t >= 20, False, {}


class WithPrograms(Corridor):
    """As simulators do it: a process of its own and a program, which end as they are told to."""

    def __init__(self) -> None:
        super().__init__()
        context = multiprocessing.get_context("fork")
        self.ours, theirs = context.Pipe()
        self.helper = context.Process(target=_wait, args=(theirs,))
        self.helper.start()
        self.ours.recv()
        self.program = subprocess.Popen(["sleep", "3600"])

    def close(self) -> None:
        self.helper.terminate()
        self.helper.join()
        self.program.send_signal(signal.SIGINT)
        self.program.wait()


def _wait(pipe) -> None:
    pipe.send(True)
    pipe.recv()


class TwoSenses(gymnasium.Env):
    """One step a game: 1 for the exclusive or of what an image shows and what a vector inside a Tuple says."""

    observation_space = spaces.Dict(
        eye=spaces.Box(0, 255, (36, 36, 3), np.uint8), hand=spaces.Tuple((spaces.Discrete(2),))
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.seen, self.felt = (int(self.np_random.integers(2)) for _ in range(2))
        return self.observe(), {}

    def step(self, action):
        return self.observe(), float(action == self.seen ^ self.felt), True, False, {}

    def observe(self):
        return {"eye": np.full((36, 36, 3), 255 * self.seen, np.uint8), "hand": (self.felt,)}


class MemoryCue(gymnasium.Env):
    """A task that needs memory and nothing else: chance scores 0 on average, memory 1.

    Observation [cues + 1] float32: the cue, one-hot, at first; then zeros; at the question a 1 in the last place.

    The action at the question is the answer: reward 1 when it names the cue, −1/(cues − 1) otherwise, and the episode
    terminates. All other rewards are 0. An episode lasts ``delay_steps + 2`` steps.
    """

    def __init__(self, cues: int = 2, delay_steps: int = 8) -> None:
        self.cues = cues
        self.delay_steps = delay_steps
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)
        self._cue = 0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.cues))
        self._step = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
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


def make_corridor() -> gymnasium.Env:
    return Corridor()


def make_with_programs() -> gymnasium.Env:
    return WithPrograms()


def make_raising() -> gymnasium.Env:
    return Corridor(trouble_at=100)


def make_flaky_for_worker_1() -> gymnasium.Env:
    """Collapses at every step, but only in the first life of worker 1."""
    flaky = "--role worker --rank 1 --incarnation 0" in " ".join(sys.argv)
    return Corridor(trouble_at=1 if flaky else None)


def make_memory_cue() -> gymnasium.Env:
    return MemoryCue(cues=2, delay_steps=6)
