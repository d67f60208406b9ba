"""One function that makes the vector environment of any family."""

import functools
import pkgutil
from typing import Any, Literal

import gymnasium
from gymnasium.error import Error

from dba3c.environments.config import FAMILIES, EnvironmentConfig
from dba3c.environments.gymnasium_vector import LoopVectorEnvironment, MakeEnv
from dba3c.environments.normalization import NormalizedObservations
from dba3c.environments.process_env import ProcessEnv
from dba3c.environments.protocol import VectorEnvironment
from dba3c.errors import UserError
from dba3c.own_code import find, module_of

View = Literal["training", "evaluation"]


def make_vector_environment(
    config: EnvironmentConfig, num_envs: int, seed: int, view: View = "training", make_env: MakeEnv | None = None
) -> VectorEnvironment:
    """B = `num_envs` copies of the environment that `config` names.

    Args:
        seed: of the whole vector, e.g. `worker_seed(run_seed, worker, incarnation)`; every copy gets its own from it.
        view: "training" (lost lives as configured) or "evaluation" (full games). Rewards are the same in both.
        make_env: makes each of them, in this process; None: as their family does. Not for Atari.

    Raises:
        UserError: the environment cannot be made or is not supported, in one line.
    """
    environments: VectorEnvironment
    if config.family == "atari":
        environments = pkgutil.resolve_name(FAMILIES["atari"].makes)(config, num_envs, seed, view)
    else:
        if make_env is None:
            make_env = maker_of(config)  # also where processes make them: what is missing is said here, once
            if config.environment_processes:
                make_env = functools.partial(ProcessEnv, config)
        environments = LoopVectorEnvironment(config, make_env, num_envs, seed)
    return as_configured(config, environments, view)


def as_configured(config: EnvironmentConfig, environments: VectorEnvironment, view: View) -> VectorEnvironment:
    """The environments with their observations normalised, where `config` says so."""
    if config.normalize_observations:
        return NormalizedObservations(config.env_id, environments, view, config.frames_per_observation)
    return environments


def maker_of(config: EnvironmentConfig) -> MakeEnv:
    """What makes one environment of any family but Atari; its module is imported now, as few have what most need."""
    return pkgutil.resolve_name(FAMILIES[config.family].makes)(config)


def custom_maker(config: EnvironmentConfig) -> MakeEnv:
    """The function that `package.module:function` names; raises `UserError` with one line when it cannot be used."""
    env_id = config.env_id
    function = find(env_id)

    def make_env() -> gymnasium.Env[Any, Any]:
        env = function()
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{env_id} must return a gymnasium.Env, not {type(env).__name__}")
        return env

    return make_env


def registered_maker(config: EnvironmentConfig) -> MakeEnv:
    """What makes any environment of Gymnasium's registry, in which importing the module of "module:Id-v0" puts one."""
    if ":" in config.env_id:  # Gymnasium's own module:Id-v0, which would not look where the command was started
        module_of(config.env_id)

    def make_registered() -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(config.env_id, disable_env_checker=True)  # what it looks at, the codecs refuse
        except (Error, ImportError) as error:
            raise UserError(f"{config.env_id} cannot be made: {' '.join(str(error).split())}") from error

    return make_registered
