"""Networks by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch
from gymnasium import spaces
from torch import nn

from dba3c.errors import UserError
from dba3c.networks.base import ActorCriticNetwork, Heads
from dba3c.networks.convolutional import dba3c_torso, nature_torso, small_torso
from dba3c.networks.observations import image_shape, is_image
from dba3c.networks.vectors import PerceptronTorso

Builder = Callable[..., ActorCriticNetwork]


def _image_network(torso: Callable[..., nn.Module]) -> Builder:
    def build(
        observation_space: spaces.Space, action_space: spaces.Space, generator: torch.Generator
    ) -> ActorCriticNetwork:
        body = torso(image_shape(observation_space), generator)
        return ActorCriticNetwork(body, Heads(body.features, action_space, generator))  # type: ignore[arg-type]

    return build


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


NETWORKS: dict[str, Builder] = {
    "dba3c": _image_network(dba3c_torso),
    "nature": _image_network(nature_torso),
    "small": _image_network(small_torso),
    "mlp": _perceptron,
}


def default_network(observation_space: spaces.Space) -> str:
    """The name that fits the observations: "small" for images, "mlp" for the rest."""
    return "small" if is_image(observation_space) else "mlp"


def build_network(
    name: str, observation_space: spaces.Space, action_space: spaces.Space, *, seed: int = 0, **options: object
) -> ActorCriticNetwork:
    """The network called ``name`` for single (unbatched) spaces; the same seed gives the same parameters.

    Raises UserError for an unknown name (naming the nearest), an option the network does not have, or spaces it
    cannot serve.
    """
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"no network is called {name!r}{hint}; there are {', '.join(NETWORKS)}")
    generator = torch.Generator().manual_seed(seed)
    try:
        return NETWORKS[name](observation_space, action_space, generator, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UserError(f"network {name}: {str(error).split('() ')[-1]}") from error
