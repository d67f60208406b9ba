"""Networks by name. A name with ``_lstm`` behind it is the same torso with a memory, "package.module:function" is the
user's own (docs/own_network.md): a function that takes the spaces of one observation and one action, and returns in
float32 one of two:

- any module that remembers nothing: observations [B, *S] → policy_logits [B, P], value [B];
- an ``ActorCriticNetwork``, which may remember: one that overrides ``initial_state``, ``forward`` and ``unroll``.
"""

import copy
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dba3c.errors import UserError, did_you_mean, warn_on_stderr
from dba3c.networks.actor_critic import (
    ActorCriticNetwork,
    Core,
    Heads,
    NetworkOutput,
    RecurrentNetwork,
    State,
    reset_state,
)
from dba3c.networks.distributions import parameter_count
from dba3c.networks.torsos import (
    SMALLEST_SIDE,
    PerceptronTorso,
    dba3c_torso,
    football_torso,
    images_of,
    nature_torso,
    resnet_torso,
    small_torso,
    torso_for,
)
from dba3c.own_code import ANYTHING, calling, find, one_line

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

    "auto" is the one that fits the observations (``fitting_network``). A network for images takes observations that
    have some and a vector, too (``FusionTorso``).

    Raises UserError for an unknown name (naming the nearest), or spaces the network cannot serve.
    """
    if ":" in name:
        return own_network(name, observation_space, action_space, seed=seed)
    if name == "auto":
        name = fitting_network(observation_space)
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


def fitting_network(observation_space: spaces.Space) -> str:
    """What "auto" is for these observations: "small" where they are images or have some, "resnet" where one of these is
    too small for it, "mlp" for the rest."""
    images = images_of(observation_space)
    if not images:
        return "mlp"
    return "small" if min(min(image.height, image.width) for image in images) >= SMALLEST_SIDE else "resnet"


_MADE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""By users' functions, in this process: who acts and who learns would share the parameters of one given again."""
STEPS, BATCHES = 2, (3, 1)
"""T and B that a network is tried with: what squeezes too much is found with one."""


class Forgetful(ActorCriticNetwork):
    """Any module that gives policy and value of observations, as a network that looks at no state."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, observation: Tensor, state: State = ()) -> NetworkOutput:
        logits, value = self.module(observation)
        return NetworkOutput(logits, value, state)


def own_network(
    name: str, observation_space: spaces.Space, action_space: spaces.Space, *, seed: int
) -> ActorCriticNetwork:
    """What the function makes, tried on observations of zeros.

    While it runs torch's, NumPy's and Python's global generators are seeded, so that each process of a run builds the
    same parameters and buffers.

    Raises:
        UserError: it cannot be found, called, or used: one line that says what is wrong.
    """
    with _generators_put_back():
        _seed(seed)
        function = find(name)  # a module may draw constants
        _seed(seed)  # whether it was imported before or not
        with calling(name):
            module = function(observation_space, action_space)
        if not isinstance(module, nn.Module):
            raise UserError(f"{name} must return a torch.nn.Module, not {type(module).__name__}")
        if module in _MADE:
            raise UserError(f"{name} gave the same module twice: it must make a new one at each call")
        _MADE.add(module)
        if any(isinstance(part, _BatchNorm) for part in module.modules()):
            raise UserError(
                f"{name}: batch normalisation keeps statistics that are no parameters and do not travel: use LayerNorm"
            )
        network = module if isinstance(module, ActorCriticNetwork) else Forgetful(module)
        for batch in BATCHES:  # the first pass makes the parameters of lazy layers, of the same seed as all others
            _try(name, network, observation_space, action_space, batch)
        _refuse_statistics(name, network, observation_space)
    return network


@contextmanager
def _generators_put_back() -> Iterator[None]:
    """Whatever is drawn inside, the generators that all code shares then go on as if nothing had been."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # the CPU's alone: a GPU's is not put back
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _refuse_statistics(name: str, network: ActorCriticNetwork, observation_space: spaces.Space) -> None:
    """Raise UserError where what a network has seen changes what it computes, other than by its parameters: that would
    not travel with them, and an agent that is loaded would be another."""
    shape, batch = observation_space.shape or (), max(BATCHES)
    rows = np.arange(batch).reshape(batch, *[1] * len(shape)) % 2  # zeros and ones, which may be indices
    observations = torch.from_numpy(np.broadcast_to(rows, (batch, *shape)).astype(observation_space.dtype))
    try:
        fresh, used = copy.deepcopy(network), copy.deepcopy(network)
    except ANYTHING as error:
        warn_on_stderr(f"{name}: whether what it has seen changes it is not known: {one_line(error)}")
        return
    with calling(name):
        used(observations, used.initial_state(batch))
        used.unroll(observations[None], used.initial_state(batch), torch.zeros(1, batch, dtype=torch.bool))
        if not np.array_equal(observations, np.broadcast_to(rows, (batch, *shape))):
            raise UserError(f"{name}: it changes the observations that it is given: it must work on a copy")
        outputs = [_evaluated(each, observations) for each in (fresh, used)]
    if not torch.equal(*outputs):
        raise UserError(
            f"{name}: what it has seen changes what it computes (statistics in buffers?), but only parameters travel "
            "to other processes and into checkpoints: see --normalize-observations"
        )
    with calling(name):
        _refuse_another_unroll(name, used, observations)


def _refuse_another_unroll(name: str, network: ActorCriticNetwork, observations: Tensor) -> None:
    """Raise UserError where a network that remembers unrolls to something else than its single steps give: who learns
    would not be who acts. It is in eval mode; of one that draws noise then it is not known."""
    state, batch = network.initial_state(len(observations)), len(observations)
    if not state:
        return
    if any(part.any() for part in state):
        raise UserError(f"{name}: initial_state must be zeros, as what is forgotten is")
    reset = torch.zeros(STEPS, batch, dtype=torch.bool)
    reset[1, 0] = True
    steps = torch.stack([observations] * STEPS)
    for _ in range(2):  # from zeros, and then from what is remembered
        with torch.no_grad():
            unrolled, again = network.unroll(steps, state, reset), network.unroll(steps, state, reset)
            stepped = []
            for forgotten in reset:
                stepped.append(network(observations, reset_state(state, forgotten)))
                state = stepped[-1].state
        logits = torch.stack([step.policy_logits for step in stepped])
        is_repeatable = torch.equal(unrolled.policy_logits, again.policy_logits)
        if is_repeatable and not torch.allclose(unrolled.policy_logits, logits, rtol=1e-3, atol=1e-5):
            raise UserError(
                f"{name}: unroll must give what as many calls of forward give, from the state it is given and from "
                "zeros where reset is true"
            )


def _evaluated(network: ActorCriticNetwork, observations: Tensor) -> Tensor:
    """[B, P + 1] of policy and value, as an agent plays; noise is drawn from the same seed."""
    network.eval()
    _seed(0)
    with torch.no_grad():
        output = network(observations, network.initial_state(len(observations)))
    return torch.nan_to_num(torch.cat((output.policy_logits, output.value[:, None]), 1))


def _try(
    name: str, network: ActorCriticNetwork, observation_space: spaces.Space, action_space: spaces.Space, batch: int
) -> None:
    """On `batch` observations of zeros. Raises UserError: one line that says what is wrong."""
    shape = (STEPS, batch, *(observation_space.shape or ()))
    observations = torch.from_numpy(np.zeros(shape, observation_space.dtype))
    with calling(name), torch.no_grad():
        if isinstance(network, Forgetful):
            given = network.module(observations[0])
            if not isinstance(given, tuple) or len(given) != 2:
                raise UserError(f"{name}: its module must give (policy_logits, value), not {type(given).__name__}")
        state = network.initial_state(batch)
        stepped = network(observations[0], state)
        unrolled = network.unroll(observations, state, torch.zeros(STEPS, batch, dtype=torch.bool))
    for what, output in (("forward", stepped), ("unroll", unrolled)):
        if not isinstance(output, NetworkOutput):
            raise UserError(f"{name}: its {what} must give a NetworkOutput, not {type(output).__name__}")
    outputs = parameter_count(action_space)
    for what, output, leading in (("", stepped, (batch,)), ("unrolled ", unrolled, (STEPS, batch))):
        _check(f"{name}: {what}policy_logits", output.policy_logits, (*leading, outputs))
        _check(f"{name}: {what}value", output.value, leading)
    for number, (part, after) in enumerate(zip(state, stepped.state, strict=False)):
        _check(f"{name}: part {number} of initial_state", part, (batch, *part.shape[-1:]))
        _check(f"{name}: part {number} of the state after a step", after, tuple(part.shape))
    if len(state) != len(stepped.state):
        raise UserError(f"{name}: the state after a step must have the parts of initial_state, {len(state)}")


def _check(what: str, given: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(given, Tensor):
        raise UserError(f"{what} must be a tensor, not {type(given).__name__}")
    if tuple(given.shape) != shape or given.dtype != torch.float32:
        raise UserError(f"{what} must be float32 {list(shape)} here, not {str(given.dtype)[6:]} {list(given.shape)}")
