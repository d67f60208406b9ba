"""`package.module:function` as a network: built alike by everybody, and what is wrong with it said in one line."""

from __future__ import annotations

import random
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dba3c.errors import UserError
from dba3c.networks import ActorCriticNetwork, build_network

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
TWO = spaces.Discrete(2)
NETS = """
    import random

    import gymnasium
    import numpy as np
    import torch
    from torch import nn

    from dba3c.networks import ActorCriticNetwork, Core, Heads, RecurrentNetwork

    PROJECTION = torch.randn(4)

    class Plain(nn.Module):
        def __init__(self, observation_space, action_space, keep_dimension=False):
            super().__init__()
            self.body = nn.Linear(observation_space.shape[0], 8)
            self.policy, self.value = nn.Linear(8, action_space.n), nn.Linear(8, 1)
            self.keep_dimension = keep_dimension

        def forward(self, observation):
            features = self.body(observation)
            value = self.value(features)
            return self.policy(features), value if self.keep_dimension else value.squeeze(-1)

    class OnlyLogits(Plain):
        def forward(self, observation):
            return self.policy(self.body(observation))

    def broad_value(observation_space, action_space):
        return Plain(observation_space, action_space, keep_dimension=True)

    def remembers(observation_space, action_space):
        torso = nn.Linear(observation_space.shape[0], 8)
        return RecurrentNetwork(torso, Core(8, 16), Heads(16, action_space))

    def squeezes(observation_space, action_space):
        network = Plain(observation_space, action_space)
        network.value = nn.Sequential(network.value, nn.Flatten(0), nn.Unflatten(0, (-1, 1)))
        network.forward = lambda x: (network.policy(network.body(x)), network.value(network.body(x)).squeeze())
        return network

    def normalises(observation_space, action_space):
        network = Plain(observation_space, action_space)
        network.body = nn.Sequential(network.body, nn.BatchNorm1d(8))
        return network

    class Running(Plain):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space)
            self.register_buffer("mean", torch.zeros(observation_space.shape))

        def forward(self, observation):
            self.mean.lerp_(observation.mean(0), 0.1)
            return super().forward(observation - self.mean)

    class InPlace(Plain):
        def forward(self, observation):
            return super().forward(observation.sub_(0.5))

    def spectral(observation_space, action_space):
        network = Plain(observation_space, action_space)
        network.body = nn.utils.parametrizations.spectral_norm(network.body)
        return network

    class Scaled(Plain):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space)
            self.register_buffer("scale", torch.full(observation_space.shape, 0.1))

        def forward(self, observation):
            return super().forward(observation * self.scale)

    class Drawn(Plain):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space)
            drawn = torch.from_numpy(np.random.randn(4)).float() + random.random()
            self.register_buffer("constant", drawn * PROJECTION)

    class Noisy(Plain):
        def forward(self, observation):
            return super().forward(observation + torch.from_numpy(np.random.randn(*observation.shape)).float())

    class GivesATuple(RecurrentNetwork):
        def forward(self, observation, state=()):
            return tuple(super().forward(observation, state))

    class IgnoresTheState(RecurrentNetwork):
        def unroll(self, observations, state, reset):
            return super().unroll(observations, self.initial_state(reset.shape[1]), reset)

    class Counting(Plain):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, observation):
            self.calls += 1
            return super().forward(observation)

    class Indexed(Plain):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space)
            self.embedding = nn.Embedding(2, 1)

        def forward(self, observation):
            return super().forward(self.embedding(observation.long())[..., 0])

    def lazy(observation_space, action_space):
        network = Plain(observation_space, action_space)
        network.body = nn.LazyLinear(8)
        return network

    class Layered(RecurrentNetwork):
        def initial_state(self, batch_size):
            return tuple(part[None] for part in super().initial_state(batch_size))

        def forward(self, observation, state=()):
            output = super().forward(observation, tuple(part[0] for part in state))
            return output._replace(state=tuple(part[None] for part in output.state))

        def unroll(self, observations, state, reset):
            return super().unroll(observations, tuple(part[0] for part in state), reset)

    def layered(observation_space, action_space):
        torso = nn.Linear(observation_space.shape[0], 8)
        return Layered(torso, Core(8, 16), Heads(16, action_space))

    class ForgetsWhereItLearns(RecurrentNetwork):
        unroll = ActorCriticNetwork.unroll

        def forward(self, observation, state=()):
            return super().forward(observation, state or self.initial_state(len(observation)))

    class IgnoresResets(RecurrentNetwork):
        def unroll(self, observations, state, reset):
            return super().unroll(observations, state, torch.zeros_like(reset))

    class Views(RecurrentNetwork):
        def unroll(self, observations, state, reset):
            steps, batch = reset.shape
            flat = observations.view(steps * batch, -1)
            return super().unroll(flat.view(steps, batch, -1), state, reset)

    class BeginsAtOne(RecurrentNetwork):
        def initial_state(self, batch_size):
            return tuple(part + 1 for part in super().initial_state(batch_size))

    def of(kind):
        torso = nn.Linear(4, 8)
        return kind(torso, Core(8, 16), Heads(16, gymnasium.spaces.Discrete(2)))

    def forgets_where_it_learns(observation_space, action_space):
        return of(ForgetsWhereItLearns)

    def ignores_resets(observation_space, action_space):
        return of(IgnoresResets)

    def gives_a_tuple(observation_space, action_space):
        return of(GivesATuple)

    def ignores_the_state(observation_space, action_space):
        return of(IgnoresTheState)

    def views(observation_space, action_space):
        return of(Views)

    def begins_at_one(observation_space, action_space):
        return of(BeginsAtOne)

    PLAIN = Plain(gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2))

    def the_same(observation_space, action_space):
        return PLAIN

    def no_module(observation_space, action_space):
        return None

    def leaves(observation_space, action_space):
        raise SystemExit(0)

    def wants_images(observation_space, action_space):
        return nn.Conv2d(observation_space.shape[2], 8, 3)
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mynets.py").write_text(textwrap.dedent(NETS))
    (tmp_path / "myscript.py").write_text("raise SystemExit(0)")
    (tmp_path / "mynet_s_needs.py").write_text("import mynet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    yield
    sys.modules.pop("mynets", None)


def parameters(network: ActorCriticNetwork) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in network.parameters()])


@pytest.mark.parametrize("name", ["Plain", "remembers", "views"])
def test_a_network_of_ones_own_depends_on_the_seed_alone_and_leaves_the_global_generators(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = parameters(build_network(f"mynets:{name}", VECTOR, TWO, seed=3))
    before, of_gpus = torch.get_rng_state(), list[int]()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", of_gpus.append)
    assert torch.equal(parameters(build_network(f"mynets:{name}", VECTOR, TWO, seed=3)), first)
    assert torch.equal(torch.get_rng_state(), before) and not of_gpus
    assert not torch.equal(parameters(build_network(f"mynets:{name}", VECTOR, TWO, seed=4)), first)


def test_constants_that_any_global_generator_draws_depend_on_the_seed_alone() -> None:
    drawn = []
    for seed in (1, 1, 2):
        sys.modules.pop("mynets", None)  # as in another process
        np.random.seed(len(drawn))
        random.seed(len(drawn))
        went_on = np.random.RandomState(len(drawn)).rand(), random.Random(len(drawn)).random()
        drawn.append(build_network("mynets:Drawn", VECTOR, TWO, seed=seed).module.constant)  # type: ignore[union-attr]
        assert (np.random.rand(), random.random()) == went_on
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_layers_that_are_made_by_the_first_pass_depend_on_the_seed_alone() -> None:
    first, again, other = (build_network("mynets:lazy", VECTOR, TWO, seed=seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert not torch.equal(first.module.body.weight, other.module.body.weight)  # type: ignore[union-attr]


def test_a_plain_module_is_stepped_and_unrolled_as_ours_are() -> None:
    network = build_network("mynets:Plain", VECTOR, TWO)
    observations = torch.randn(5, 3, 4)
    unrolled = network.unroll(observations, (), torch.zeros(5, 3, dtype=torch.bool))
    for t in range(5):
        stepped = network(observations[t])
        torch.testing.assert_close(unrolled.policy_logits[t], stepped.policy_logits)
        torch.testing.assert_close(unrolled.value[t], stepped.value)


@pytest.mark.parametrize("name", ["Scaled", "Counting", "Indexed", "Noisy"])
def test_a_buffer_that_changes_nothing_of_what_is_computed_is_as_good_as_code(name: str) -> None:
    assert build_network(f"mynets:{name}", VECTOR, TWO)(torch.ones(3, 4)).value.shape == (3,)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mynet:Plain", "mynet:Plain: no module named mynet here"),
        ("mynet_s_needs:net", "mynet_s_needs needs the module mynet, which is not installed"),
        ("mynets:Plan", "mynets has no Plan; it has .*Plain"),
        ("mynets:PLAIN.training.no", "mynets has no no; it has no function"),
        ("myscript:net", r"myscript:net: importing myscript raised SystemExit: 0 \(.*myscript.py:\d+\)"),
        ("mynets:leaves", "mynets:leaves raised SystemExit: 0"),
        ("mynets:no_module", "mynets:no_module must return a torch.nn.Module, not NoneType"),
        ("mynets:OnlyLogits", r"its module must give \(policy_logits, value\), not Tensor"),
        ("mynets:broad_value", r"value must be float32 \[3\] here, not float32 \[3, 1\]"),
        ("mynets:squeezes", r"value must be float32 \[1\] here, not float32 \[\]"),
        ("mynets:normalises", "batch normalisation keeps statistics that are no parameters"),
        ("mynets:Running", "what it has seen changes what it computes .*, but only parameters travel"),
        ("mynets:InPlace", "it changes the observations that it is given: it must work on a copy"),
        ("mynets:spectral", "what it has seen changes what it computes"),
        ("mynets:layered", r"part 0 of initial_state must be float32 \[3, 16\] here, not float32 \[1, 3, 16\]"),
        ("mynets:forgets_where_it_learns", "unroll must give what as many calls of forward give"),
        ("mynets:ignores_resets", "unroll must give what as many calls of forward give, from the state"),
        ("mynets:ignores_the_state", "unroll must give what as many calls of forward give, from the state it is given"),
        ("mynets:gives_a_tuple", "its forward must give a NetworkOutput, not tuple"),
        ("mynets:begins_at_one", "initial_state must be zeros"),
        ("mynets:wants_images", r"raised IndexError: .*mynets.py:\d+\)"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(name: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        build_network(name, VECTOR, TWO)
    assert "\n" not in str(caught.value)


def test_a_function_that_gives_the_same_module_again_is_refused() -> None:
    build_network("mynets:the_same", VECTOR, TWO)
    with pytest.raises(UserError, match="mynets:the_same gave the same module twice: it must make a new one at each"):
        build_network("mynets:the_same", VECTOR, TWO)
