"""Networks by name: ``build_network("nature", observation_space, action_space, seed=1)``.

In: spaces, a name, a seed. Out: a module from observations [T, B, ...] to policies and values, or values of actions.
Never: a loss, or an environment.
"""

from dba3c.networks.actor_critic import (
    ActorCriticNetwork,
    Core,
    Heads,
    NetworkOutput,
    RecurrentNetwork,
    State,
    reset_state,
)
from dba3c.networks.registry import build_network

__all__ = [
    "ActorCriticNetwork",
    "Core",
    "Heads",
    "NetworkOutput",
    "RecurrentNetwork",
    "State",
    "build_network",
    "reset_state",
]
