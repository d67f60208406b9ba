"""Environments: one factory, one file per family, one protocol. `docs/environments.md` is the guide."""

from dba3c.environments.atari.protocols import atari_2017, atari_v4_no_sticky, atari_v5
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import EnvironmentFailed, Episode, Transition, VectorEnvironment, worker_seed

__all__ = [
    "EnvironmentConfig",
    "EnvironmentFailed",
    "Episode",
    "Transition",
    "VectorEnvironment",
    "atari_2017",
    "atari_v4_no_sticky",
    "atari_v5",
    "make_vector_environment",
    "worker_seed",
]
