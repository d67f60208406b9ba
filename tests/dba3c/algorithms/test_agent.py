"""The agent: the graph that acted is the graph of the loss, and everything leaves as one flat vector."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dba3c.algorithms.actor_critic import ActorCriticLoss
from dba3c.algorithms.agent import Agent, FlatNetwork
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.environments.protocol import Episode, Transition
from dba3c.metrics.writer import Sections
from dba3c.networks import build_network
from dba3c.workers.collector import Collector
from param_servers.layout import FlatLayout

B, T = 3, 4
OBSERVATION = spaces.Box(-1.0, 1.0, (5,), np.float32)
ACTION = spaces.Discrete(3)


class ScriptedEnvironments:
    """Fixed observations and rewards; keeps what it was asked."""

    num_envs = B
    observation_space, action_space = OBSERVATION, ACTION

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.observations = random.normal(size=(50, B, 5)).astype(np.float32)
        self.rewards = random.normal(size=(50, B)).astype(np.float32)
        self.actions: list[np.ndarray] = []

    def reset(self) -> np.ndarray:
        return self.observations[0]

    def step(self, actions: np.ndarray) -> Transition:
        self.actions.append(actions)
        t = len(self.actions)
        truncated = np.array([t == 2, False, False])
        valid = np.array([t != 3, True, True])
        episodes = [Episode(score=7.0, length_steps=2, terminated=False, truncated=True)] if t == 2 else []
        rewards, frames = self.rewards[t - 1] * valid, 4 * valid.astype(np.int64)
        none = np.zeros(B, bool)
        return Transition(self.observations[t], rewards, none, truncated, valid, ~valid, episodes, rewards, frames)

    def close(self) -> None: ...


def make_agent(seed: int = 0) -> tuple[Agent, torch.Tensor]:
    network = build_network("mlp", OBSERVATION, ACTION, seed=seed)
    layout = FlatLayout.of_module(network)
    flat = layout.flatten(network)
    return Agent(network, layout, ActorCriticLoss(ACTION, AlgorithmConfig())), flat


class RelativeBias(nn.Module):
    """As in attention: four dimensions that are no filters, and filters that are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.filters = nn.Parameter(torch.ones(1, 2, 3, 3)), Standardised(2, 4, 3)
        self.plain = nn.Conv2d(2, 4, 3)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.filters(observation + self.bias.view(2, 3, 3)) + self.plain(observation)


class Standardised(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.weight.view(len(self.weight), -1)
        return super().forward(x) / rows.std(1).view(1, -1, 1, 1)


def test_only_plain_convolutions_get_another_memory_format_than_their_network_gave_them() -> None:
    network = RelativeBias()
    flat = FlatNetwork(network, FlatLayout.of_module(network))
    gradient = flat.gradient_of(network(torch.ones(5, 2, 3, 3)).sum())
    assert gradient.isfinite().all() and gradient.any()
    assert network.plain.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_gradient_of_the_acting_graph_is_that_of_a_second_forward_pass() -> None:
    agent, _ = make_agent()
    environments = ScriptedEnvironments()
    rollout = Collector(environments, agent, T).collect(torch.Generator().manual_seed(3), Sections())
    gradient, _ = agent.gradient(rollout, entropy_cost=0.01)
    gradient = gradient.clone()

    again, _ = make_agent()
    outputs = again.network(torch.as_tensor(environments.observations[:T]).flatten(0, 1))
    second = type(rollout)(
        **{
            **vars(rollout),
            "policy_logits": outputs.policy_logits.view(T, B, -1),
            "values": outputs.value.view(T, B),
        }
    )
    loss = again.loss(second, entropy_cost=0.01)
    loss.total.backward()
    expected = torch.cat([p.grad.flatten() for p in again.network.parameters()])
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert gradient.abs().sum() > 0


def test_a_rollout_counts_the_reset_step_neither_as_stepped_nor_as_data() -> None:
    agent, _ = make_agent()
    rollout = Collector(ScriptedEnvironments(), agent, T).collect(torch.Generator(), Sections())
    assert rollout.experience == (T * B - 1, 4 * (T * B - 1))
    assert rollout.data_points == T * B - 1
    assert [episode.score for episode in rollout.episodes] == [7.0]


def test_loading_flat_parameters_changes_what_the_agent_computes() -> None:
    agent, _ = make_agent(seed=0)
    _, other = make_agent(seed=1)
    reference, _ = make_agent(seed=1)
    observation = np.ones((B, 5), np.float32)
    agent.load(other)
    assert torch.equal(agent.forward(observation, ()).value, reference.forward(observation, ()).value)


def test_the_same_generator_seed_gives_the_same_actions() -> None:
    taken = []
    for _ in range(2):
        agent, environments = make_agent()[0], ScriptedEnvironments()
        Collector(environments, agent, T).collect(torch.Generator().manual_seed(5), Sections())
        taken.append(np.stack(environments.actions))
    assert np.array_equal(*taken)


@pytest.mark.parametrize("network", ["nature", "small"])
def test_a_bfloat16_torso_gives_a_float32_gradient_close_to_the_float32_one(network: str) -> None:
    images = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    gradients = []
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for precision in ("float32", "bfloat16"):
        built = build_network(network, images, ACTION, seed=0)
        layout = FlatLayout.of_module(built)
        agent = Agent(built, layout, ActorCriticLoss(ACTION, AlgorithmConfig()), precision=precision)
        output = agent.forward(frames, ())
        (output.policy_logits.square().mean() + output.value.square().mean()).backward()
        gradients.append(torch.cat([p.grad.float().flatten() for p in agent.network.parameters()]))
        assert output.value.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(*gradients, dim=0)
    assert cosine > 0.98


def test_a_network_of_three_dimensional_convolutions_learns_as_any_other() -> None:
    class Moving(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.motion, self.image = torch.nn.Conv3d(1, 2, (4, 8, 8), stride=8), torch.nn.Conv2d(2, 4, 10)

        def forward(self, frames: torch.Tensor) -> torch.Tensor:
            return self.image(self.motion(frames.float().unsqueeze(1)).squeeze(2))

    network = Moving()
    layout = FlatLayout.of_module(network)
    flat = FlatNetwork(network, layout)
    assert network.image.weight.is_contiguous(memory_format=torch.channels_last)
    gradient = flat.gradient_of(network(torch.ones(2, 4, 84, 84, dtype=torch.uint8)).square().sum())
    for name, part in layout.views(gradient).items():
        torch.testing.assert_close(part, dict(network.named_parameters())[name].grad)


def test_what_a_module_derives_for_eval_is_of_the_parameters_that_were_loaded_last() -> None:
    class Merging(nn.Module):
        """As a low-rank adapter: in eval mode one matrix does the work of two."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.more = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

        def train(self, mode: bool = True) -> "Merging":
            if mode != self.training:
                self.weight.data += -self.more if mode else self.more
            return super().train(mode)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.weight + self.more if self.training else self.weight)

    module = Merging()
    plays = FlatNetwork(module, FlatLayout.of_module(module))
    module.eval()
    for parameters in ([1.0, 2.0, 30.0, 40.0], [5.0, 6.0, 70.0, 80.0]):
        plays.load(torch.tensor(parameters))
        assert module(torch.ones(2)).tolist() == [parameters[0] + parameters[2], parameters[1] + parameters[3]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_torso_s_complex_constants_stay_so_and_a_network_need_have_none(precision: str) -> None:
    class Network(nn.Module):
        def __init__(self, torso: nn.Module | None) -> None:
            super().__init__()
            self.torso, self.head = torso, nn.Linear(2, 1)

    torso = nn.Linear(2, 2)
    torso.register_buffer("phase", torch.ones(2, dtype=torch.complex64) * 1j)
    for each in (Network(torso), Network(None)):
        FlatNetwork(each, FlatLayout.of_module(each), precision=precision)
    assert torso.phase.tolist() == [1j, 1j]
    assert torso.weight.dtype == getattr(torch, precision)
