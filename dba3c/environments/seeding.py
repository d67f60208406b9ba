"""Seeds of environments: a function of (run seed, worker, index, incarnation), so that no two games are alike.

`numpy.random.SeedSequence` mixes the numbers, so neighbours (seed 1 worker 0, seed 0 worker 1) share nothing, which
adding them up would not give.
"""

from __future__ import annotations

import numpy as np

MAX_SEED = 2**31 - 1  # ale-py takes a C int and reads a negative one as "unseeded"


def worker_seed(run_seed: int, worker: int, incarnation: int = 0) -> int:
    """The seed of one worker's vector environment; a restarted worker (next incarnation) plays other games."""
    return _mix(run_seed, worker, incarnation)


def environment_seed(vector_seed: int, index: int, restart: int = 0) -> int:
    """The seed of environment `index` after `restart` restarts, in [0, 2**31 - 1)."""
    return _mix(vector_seed, index, restart)


def environment_seeds(vector_seed: int, num_envs: int) -> np.ndarray:
    """Seeds int32 [B] of all environments of a vector."""
    return np.array([environment_seed(vector_seed, index) for index in range(num_envs)], dtype=np.int32)


def _mix(*words: int) -> int:
    return int(np.random.SeedSequence(words).generate_state(1, dtype=np.uint32)[0] % MAX_SEED)
