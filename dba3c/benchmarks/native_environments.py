"""Each family's native vector environment with nothing around it: what the factory's overhead is measured against.

Atari: ale-py's own, with the protocol's options. Every other family: Gymnasium's `SyncVectorEnv` over the
same single environments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import maker_of
from dba3c.environments.families import atari_games
from dba3c.environments.protocol import environment_seeds

ACTION_BATCHES = 64
"""Random actions are drawn before the clock starts, and used again."""


class Stepper(NamedTuple):
    """Something with B environments that can be stepped."""

    step: Callable[[np.ndarray], Any]
    actions: list[np.ndarray]
    close: Callable[[], None]


def native(config: EnvironmentConfig, num_envs: int, seed: int) -> Stepper:
    """The native vector environment on the seeds that the factory would give it."""
    seeds = [int(each) for each in environment_seeds(seed, num_envs)]
    envs: Any
    if config.family != "atari":
        envs = gymnasium.vector.SyncVectorEnv([maker_of(config, "training")] * num_envs)
        envs.reset(seed=seeds)
    else:
        envs = _ale(config, num_envs)
        envs.reset(seed=np.array(seeds, dtype=np.int32))
    single = getattr(envs, "single_action_space", None) or envs.action_space
    return Stepper(envs.step, random_actions(single, num_envs), envs.close)


def random_actions(single: gymnasium.Space[Any], num_envs: int) -> list[np.ndarray]:
    """The same batches of actions for the same space."""
    single.seed(0)
    return [np.stack([single.sample() for _ in range(num_envs)]) for _ in range(ACTION_BATCHES)]


def _ale(config: EnvironmentConfig, num_envs: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        atari_games()[config.env_id],
        num_envs,
        num_threads=min(config.env_threads, num_envs),
        repeat_action_probability=config.repeat_action_probability,
        noop_max=config.noop_max,
        use_fire_reset=config.fire_on_reset,
        reward_clipping=False,
    )
