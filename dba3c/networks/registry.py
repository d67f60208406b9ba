"""Networks by name. A name with ``_lstm`` behind it is the same torso with a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces

from dba3c.errors import UserError, did_you_mean
from dba3c.networks.actor_critic import ActorCriticNetwork, Core, Heads, RecurrentNetwork
from dba3c.networks.own import own_network
from dba3c.networks.torsos import (
    PerceptronTorso,
    dba3c_torso,
    football_torso,
    nature_torso,
    resnet_torso,
    sees_images,
    small_torso,
    torso_for,
)

_TORSOS: dict[str, Callable[..., Any]] = {
    "dba3c": dba3c_torso,
    "nature": nature_torso,
    "small": small_torso,
    "resnet": resnet_torso,
    "football": football_torso,
}
NETWORKS = tuple(name + memory for memory in ("", "_lstm") for name in (*_TORSOS, "mlp"))


def build_network(
    name: str, observation_space: spaces.Space, action_space: spaces.Space, *, seed: int = 0
) -> ActorCriticNetwork:
    """The network called ``name`` for single (unbatched) spaces; the same seed gives the same parameters.

    "auto" is the one that fits the observations: "small" where they are images or have some, "mlp" for the rest;
    "package.module:function" is the user's own (``dba3c.networks.own``). A network for images takes observations that
    have some and a vector, too (``FusionTorso``).

    Raises UserError for an unknown name (naming the nearest), or spaces the network cannot serve.
    """
    if ":" in name:
        return own_network(name, observation_space, action_space, seed=seed)
    if name == "auto":
        name = "small" if sees_images(observation_space) else "mlp"
    if name not in NETWORKS:
        raise UserError(f"no network is called {name!r}; {did_you_mean(name, NETWORKS)}")
    generator = torch.Generator().manual_seed(seed)
    kind, remembers = name.removesuffix("_lstm"), name.endswith("_lstm")
    separate, lstm_size = kind == "mlp" and not remembers, 64 if kind == "mlp" else 256
    torso: Any
    if kind == "mlp":
        hidden = (64,) if remembers else (64, 64)
        torso = PerceptronTorso(observation_space, generator, hidden=hidden, separate=separate)
    else:
        torso = torso_for(observation_space, _TORSOS[kind], generator)
    if remembers:
        core = Core(torso.features, lstm_size, generator)
        return RecurrentNetwork(torso, core, Heads(lstm_size, action_space, generator))
    return ActorCriticNetwork(torso, Heads(torso.features, action_space, generator, separate=separate))
