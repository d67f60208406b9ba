"""Actor-critic networks by name: ``build_network("nature", observation_space, action_space, seed=1)``."""

from dba3c.networks.base import ActorCriticNetwork, Heads, NetworkOutput, State
from dba3c.networks.registry import NETWORKS, build_network, default_network

__all__ = ["NETWORKS", "ActorCriticNetwork", "Heads", "NetworkOutput", "State", "build_network", "default_network"]
