"""One function that makes the vector environment of any family."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.protocol import VectorEnvironment
from dba3c.errors import UserError

View = Literal["training", "evaluation"]


def make_vector_environment(
    config: EnvironmentConfig, num_envs: int, seed: int, view: View = "training"
) -> VectorEnvironment:
    """B = `num_envs` copies of the environment that `config` names.

    `seed`: of the whole vector, e.g. `worker_seed(run_seed, worker, incarnation)`; every copy gets its own from it.
    `view`: "training" (clipped rewards and lost lives as configured) or "evaluation" (full games, raw rewards).
    Raises `UserError` with one line where the environment cannot be made or is not supported.
    """
    if num_envs < 1:
        raise UserError(f"a vector environment needs at least 1 environment, not {num_envs}")
    if view not in ("training", "evaluation"):
        raise UserError(f"view must be training or evaluation, not {view}")
    return _make(config, num_envs, seed, view)


def _make(config: EnvironmentConfig, num_envs: int, seed: int, view: str) -> VectorEnvironment:
    if config.family == "atari":
        from dba3c.environments.atari import make_atari

        return make_atari(config, num_envs, seed, view)
    from dba3c.environments.gymnasium_vector import LoopVectorEnvironment

    return LoopVectorEnvironment(config, _maker_of(config), num_envs, seed, view)


def _maker_of(config: EnvironmentConfig) -> Any:
    if config.family == "custom":
        from dba3c.environments.custom import load_make_env

        return load_make_env(config.env_id)

    def make_registered() -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(config.env_id)
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"{config.env_id} cannot be made: {' '.join(str(error).split())}") from error

    return make_registered
