"""Actor-critic networks by name: ``build_network("nature", observation_space, action_space, seed=1)``."""

from dba3c.networks.base import ActorCriticNetwork, Heads, NetworkOutput, State
from dba3c.networks.recurrent import RecurrentNetwork, reset_state
from dba3c.networks.registry import NETWORKS, build_network, default_network

__all__ = [
    "NETWORKS",
    "ActorCriticNetwork",
    "Heads",
    "NetworkOutput",
    "RecurrentNetwork",
    "State",
    "build_network",
    "default_network",
    "reset_state",
]
