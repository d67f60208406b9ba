"""What every vector environment looks like to a worker, whatever game is behind it.

Legend: B environments, "..." the shape of one observation, O its numbers, D dimensions of an action.

Autoreset is NEXT_STEP everywhere: where a game ends, `step` returns its true last observation (whose value is the
bootstrap of a truncated episode), and the following `step` is the reset: its action is ignored, its reward is 0 and
`valid` is False, so it must not train.

What a run has done is three numbers, each counted in one place:

- **emulator frames** that environments ran, as drawn where the frame skip is random and fewer where a game ends within
  a step (ViZDoom does not tell: there a game's last step counts whole); a reset's are none. `Transition.frames`,
  summed where environments are stepped (`Experience`);
- **agent steps**: the steps that ran any; of `Experience` too. Both are experience, whatever becomes of it;
- **data points**: agent steps that entered an accepted update, each once, counted by whoever pushes the gradient.

Seeds are a function of (run seed, worker, index, incarnation), so that no two games are alike. NumPy's `SeedSequence`
mixes the numbers, so neighbours (seed 1 worker 0, seed 0 worker 1) share nothing, which adding them up would not give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Space

from dba3c.errors import UserError

MAX_SEED = 2**31 - 1  # ale-py takes a C int and reads a negative one as "unseeded"


class Episode(NamedTuple):
    """One whole game (all its lives), finished in the step that reports it."""

    score: float  # sum of the raw rewards (or of what an environment gives for them), never clipped
    length_steps: int  # agent steps, the reset's not counted
    terminated: bool  # the game itself ended
    truncated: bool  # a time limit ended it
    environment: int = -1  # which of the B environments played it


class Games:
    """Score and length so far of the game that each of B environments plays."""

    def __init__(self, num_envs: int) -> None:
        self._score = np.zeros(num_envs, dtype=np.float64)
        self._length_steps = np.zeros(num_envs, dtype=np.int64)

    def count(self, gained: np.ndarray, played: np.ndarray) -> None:
        """Add a step: what it gained [B], and whether it was one of the game (bool [B]; no autoreset)."""
        self._score += gained
        self._length_steps += played

    def forget_scores(self) -> None:
        """What the games have gained so far was no score."""
        self._score[:] = 0.0

    def finish(self, finished: np.ndarray, terminated: np.ndarray) -> list[Episode]:
        """The games that `finished` (indices); `terminated` [B]: by the game itself. The next ones begin at 0."""
        episodes = [
            Episode(
                score=float(self._score[index]),
                length_steps=int(self._length_steps[index]),
                terminated=bool(terminated[index]),
                truncated=not terminated[index],
                environment=int(index),
            )
            for index in finished
        ]
        self._score[finished], self._length_steps[finished] = 0.0, 0
        return episodes


class Transition(NamedTuple):
    """What one step of B environments gave. All arrays are [B] or [B, ...].

    The arrays are the caller's: the environment never writes to them again, so a rollout may keep them without copying.
    """

    observation: np.ndarray  # [B, ...] uint8 or float32: what to act on next
    reward: np.ndarray  # float32 [B], as it is trained on in both views: shaped, scaled and clipped where configured
    terminated: np.ndarray  # bool [B]; in the training view a lost life counts when `episodic_life`
    truncated: np.ndarray  # bool [B]; never together with `terminated`: a truncated episode bootstraps
    valid: np.ndarray  # bool [B]; False where the action was not the agent's doing: the step must not train
    first: np.ndarray  # bool [B]; the step was a reset: its observation is a new game's first (a lost life begins none)
    episodes: list[Episode]  # games finished in this step
    gained: np.ndarray  # float64 [B]: what the step adds to the score, never clipped
    frames: np.ndarray  # int64 [B]: emulator frames that the step ran; 0 where it was a reset, or broke
    failures: list[str] = []  # noqa: RUF012 (never appended to): one line per environment that broke and was restarted


class Experience(NamedTuple):
    """What environments did in one step or many; see the module's docstring."""

    agent_steps: int = 0
    frames: int = 0

    @staticmethod
    def of(frames: np.ndarray) -> Experience:
        """From the `frames` of a transition [B], or of several."""
        return Experience(int(np.count_nonzero(frames)), int(frames.sum()))


class VectorEnvironment(Protocol):
    """B copies of one environment, stepped together. Not thread-safe: one thread steps it."""

    num_envs: int
    observation_space: Space[Any]  # of one environment: Box uint8 [C, H, W], Box float32 [O], or `spaces.MixedSpace`
    action_space: Space[Any]  # of one environment: Discrete, MultiDiscrete or Box

    def reset(self) -> np.ndarray:
        """Start new games everywhere; the first observations [B, ...]. The seed the environment was made with gives the
        same games again."""
        ...

    def step(self, actions: np.ndarray) -> Transition:
        """Take one agent step in each environment.

        `actions`: int [B] (Discrete), int [B, D] (MultiDiscrete) or float32 [B, D] (Box, clipped to its bounds).
        Raises `EnvironmentFailed` when an environment broke more often than `environment_restarts` allows.
        """
        ...

    def close(self) -> None:
        """Release processes, threads and windows; further calls are harmless."""
        ...


class EnvironmentFailed(UserError):
    """An environment broke more often than `environment_restarts` allows; the line names index, seed and step.

    A fault of the process that plays it, like a crash: whoever supervises that process starts it again. What happened
    before it happened all the same, and is written down by who is told of it.
    """

    failures: Sequence[str] = ()
    """One line for each restart in the step that failed."""
    transitions: Sequence[Transition] = ()
    """The steps before it that are not written down, of a rollout that it left unfinished."""


def number(value: Any) -> float:
    """A reward as an environment gives it, also as an array of one (-np.square(action)). Raises what Python and NumPy
    raise of anything else."""
    try:
        return float(value)
    except TypeError:
        return float(np.asarray(value).item())


def worker_seed(run_seed: int, worker: int, incarnation: int = 0, lane: int = 0) -> int:
    """The seed of one worker's, or its lane's, vector environment; a restarted worker (next incarnation) plays other
    games."""
    return _mix(run_seed, worker, incarnation, *([lane] if lane else []))


def environment_seed(vector_seed: int, index: int, restart: int = 0) -> int:
    """The seed of environment `index` after `restart` restarts, in [0, 2**31 - 1)."""
    return _mix(vector_seed, index, restart)


def environment_seeds(vector_seed: int, num_envs: int) -> np.ndarray:
    """Seeds int32 [B] of all environments of a vector."""
    return np.array([environment_seed(vector_seed, index) for index in range(num_envs)], dtype=np.int32)


def _mix(*words: int) -> int:
    return int(np.random.SeedSequence(words).generate_state(1, dtype=np.uint32)[0] % MAX_SEED)
