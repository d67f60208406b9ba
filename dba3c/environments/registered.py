"""Environments of Gymnasium's registry: which ids there are, what counts as solved, what makes one."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.error import Error

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.gymnasium_vector import MakeEnv
from dba3c.errors import UserError
from dba3c.own_code import module_of


def ids() -> list[str]:
    """All but the Atari ones that importing ale-py may have added: those are another family."""
    return [name for name, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]


def reward_threshold(env_id: str) -> float | None:
    """The mean score at which the registry counts it as solved; None where it says nothing."""
    try:
        threshold = gymnasium.spec(env_id).reward_threshold
    except Error:
        return None
    return None if threshold is None else float(threshold)


def registered_maker(config: EnvironmentConfig, view: str) -> MakeEnv:
    """What makes any environment of Gymnasium's registry, in which importing the module of "module:Id-v0" puts one."""
    if ":" in config.env_id:  # Gymnasium's own module:Id-v0, which would not look where the command was started
        module_of(config.env_id)

    def make_registered() -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(config.env_id, disable_env_checker=True)  # what it looks at, the codecs refuse
        except (gymnasium.error.Error, ImportError) as error:
            raise UserError(f"{config.env_id} cannot be made: {' '.join(str(error).split())}") from error

    return make_registered
