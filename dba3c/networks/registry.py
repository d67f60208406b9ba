"""Networks by name. A name with ``_lstm`` behind it is the same torso with a memory."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gymnasium import spaces

from dba3c.errors import UserError
from dba3c.networks.actor_critic import ActorCriticNetwork, Core, Heads, RecurrentNetwork
from dba3c.networks.torsos import (
    PerceptronTorso,
    dba3c_torso,
    football_torso,
    image_shape,
    is_image,
    nature_torso,
    resnet_torso,
    small_torso,
)

_TORSOS: dict[str, Callable[..., Any]] = {
    "dba3c": dba3c_torso,
    "nature": nature_torso,
    "small": small_torso,
    "resnet": resnet_torso,
    "football": football_torso,
}


def _image_network(
    torso: Callable[..., Any],
    observation_space: spaces.Space,
    action_space: spaces.Space,
    generator: torch.Generator,
) -> ActorCriticNetwork:
    body = torso(image_shape(observation_space), generator)
    return ActorCriticNetwork(body, Heads(body.features, action_space, generator))


def _recurrent_image_network(
    torso: Callable[..., Any],
    observation_space: spaces.Space,
    action_space: spaces.Space,
    generator: torch.Generator,
    *,
    lstm_size: int = 256,
) -> ActorCriticNetwork:
    return _with_memory(torso(image_shape(observation_space), generator), action_space, generator, lstm_size)


def _with_memory(
    body: Any, action_space: spaces.Space, generator: torch.Generator, lstm_size: int
) -> ActorCriticNetwork:
    core = Core(body.features, lstm_size, generator)
    return RecurrentNetwork(body, core, Heads(lstm_size, action_space, generator))


def _perceptron(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    generator: torch.Generator,
    *,
    hidden: tuple[int, ...] = (64, 64),
    separate: bool = True,
) -> ActorCriticNetwork:
    torso = PerceptronTorso(observation_space, generator, hidden=hidden, separate=separate)
    return ActorCriticNetwork(torso, Heads(torso.features, action_space, generator, separate=separate))


def _recurrent_perceptron(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    generator: torch.Generator,
    *,
    hidden: tuple[int, ...] = (64,),
    lstm_size: int = 64,
) -> ActorCriticNetwork:
    torso = PerceptronTorso(observation_space, generator, hidden=hidden, separate=False)
    return _with_memory(torso, action_space, generator, lstm_size)


Builder = Callable[..., ActorCriticNetwork]
NETWORKS: dict[str, Builder] = {
    **{name: partial(_image_network, torso) for name, torso in _TORSOS.items()},
    "mlp": _perceptron,
    **{f"{name}_lstm": partial(_recurrent_image_network, torso) for name, torso in _TORSOS.items()},
    "mlp_lstm": _recurrent_perceptron,
}


def default_network(observation_space: spaces.Space) -> str:
    """The name that fits the observations: "small" for images, "mlp" for the rest."""
    return "small" if is_image(observation_space) else "mlp"


def build_network(
    name: str, observation_space: spaces.Space, action_space: spaces.Space, *, seed: int = 0, **options: object
) -> ActorCriticNetwork:
    """The network called ``name`` for single (unbatched) spaces; the same seed gives the same parameters.

    "auto" is ``default_network`` of the observations.

    Raises UserError for an unknown name (naming the nearest), an option the network does not have, or spaces it
    cannot serve.
    """
    if name == "auto":
        name = default_network(observation_space)
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"no network is called {name!r}{hint}; there are {', '.join(NETWORKS)}")
    known = _options_of(NETWORKS[name])
    for option in options:
        if option not in known:
            raise UserError(f"network {name} has no option {option!r}; it has {', '.join(known) or 'none'}")
    return NETWORKS[name](observation_space, action_space, torch.Generator().manual_seed(seed), **options)


def _options_of(builder: Builder) -> list[str]:
    parameters = inspect.signature(builder).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
