"""Memory: unrolled equals stepped, resets in the middle, gradients that stop there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dba3c.errors import UserError
from dba3c.networks import RecurrentNetwork, build_network, reset_state
from dba3c.networks.q_networks import NO_ACTION, build_q_network

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 36, 36), np.uint8)


def random_resets(length: int, batch: int, seed: int) -> torch.Tensor:
    return torch.rand(length, batch, generator=torch.Generator().manual_seed(seed)) < 0.3


@pytest.mark.parametrize(("name", "space"), [("mlp_lstm", VECTOR), ("small_lstm", IMAGE), ("mlp", VECTOR)])
def test_an_unroll_gives_what_the_steps_give(name: str, space: spaces.Box) -> None:
    space.seed(0)
    torch.manual_seed(0)
    network = build_network(name, space, spaces.Discrete(3), seed=1)
    observations = torch.from_numpy(np.stack([[space.sample() for _ in range(4)] for _ in range(7)]))
    for seed in range(3):
        reset = random_resets(7, 4, seed)
        state = tuple(torch.randn(part.shape) for part in network.initial_state(4))
        unrolled = network.unroll(observations, state, reset)
        for t in range(7):
            stepped = network(observations[t], reset_state(state, reset[t]))
            state = stepped.state
            torch.testing.assert_close(unrolled.policy_logits[t], stepped.policy_logits)
            torch.testing.assert_close(unrolled.value[t], stepped.value)
        assert len(state) == len(unrolled.state)
        for ours, theirs in zip(unrolled.state, state, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_nothing_before_a_reset_reaches_what_comes_after_it() -> None:
    network = build_network("mlp_lstm", VECTOR, spaces.Discrete(3))
    observations = torch.randn(6, 2, 3, requires_grad=True)
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[3, 0] = True
    network.unroll(observations, network.initial_state(2), reset).value[5].sum().backward()
    assert not observations.grad[:3, 0].any()
    assert observations.grad[3:, 0].any()
    assert observations.grad[:3, 1].any()


def test_a_fresh_state_is_zero_and_may_be_left_out() -> None:
    network = build_network("mlp_lstm", VECTOR, spaces.Discrete(3))
    observation = torch.randn(2, 3)
    with_state = network(observation, network.initial_state(2))
    torch.testing.assert_close(network(observation).value, with_state.value)


def test_resetting_leaves_other_rows_and_feed_forward_networks_alone() -> None:
    state = (torch.ones(3, 2), torch.ones(3, 2))
    hidden, memory = reset_state(state, torch.tensor([False, True, False]))
    assert hidden.tolist() == memory.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert reset_state((), torch.tensor([True])) == ()


def test_the_lstm_is_float32_behind_a_bfloat16_torso() -> None:
    network = build_network("small_lstm", IMAGE, spaces.Discrete(3))
    assert isinstance(network, RecurrentNetwork)
    network.torso.to(torch.bfloat16)
    output = network(torch.zeros(2, 2, 36, 36, dtype=torch.uint8), network.initial_state(2))
    assert {part.dtype for part in (output.value, *output.state)} == {torch.float32}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_of_deep_and_recurrent_networks_are_those_of_the_docstrings() -> None:
    gray, football = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Box(0, 255, (4, 72, 96), np.uint8)
    assert count(build_network("resnet", gray, spaces.Discrete(4)).torso) == 1_089_232
    assert count(build_network("football", football, spaces.Discrete(19)).torso) == 390_000
    core = build_network("resnet_lstm", gray, spaces.Discrete(4)).core
    assert count(core) == 4 * 256 * (256 + 256 + 2)
    assert count(build_q_network(gray, spaces.Discrete(18))) == 4_359_347


def test_a_residual_network_is_the_paper_s_figure() -> None:
    torso = build_network("resnet", IMAGE, spaces.Discrete(3)).torso
    observation = torch.randint(0, 256, (2, 2, 36, 36), dtype=torch.uint8)
    x = observation.float() / 255
    for entry, blocks in zip(torso.entries, torso.blocks, strict=True):
        x = nn.functional.max_pool2d(entry(x), 3, 2, 1)
        for block in blocks:
            x = x + block.second(torch.relu(block.first(torch.relu(x))))
    expected = torch.relu(torso.connected(torch.relu(x).permute(0, 2, 3, 1).reshape(2, -1)))
    torch.testing.assert_close(torso(observation), expected, rtol=1e-3, atol=1e-4)


def test_football_s_stacked_planes_are_channels() -> None:
    space = spaces.Box(0, 255, (16, 72, 96), np.uint8)
    output = build_network("football", space, spaces.Discrete(19))(torch.zeros(1, 16, 72, 96, dtype=torch.uint8))
    assert output.policy_logits.shape == (1, 19)


def test_a_q_unroll_gives_what_the_steps_give() -> None:
    network = build_q_network(VECTOR, spaces.Discrete(3), lstm_size=8, dueling_size=8)
    observations, reset = torch.randn(6, 4, 3), random_resets(6, 4, 1)
    actions, rewards = torch.randint(0, 3, (6, 4)), torch.randn(6, 4)
    state = network.initial_state(4)
    unrolled = network.unroll(observations, state, actions, rewards, reset)
    for t in range(6):
        action, reward = actions[t].clone(), rewards[t].clone()
        action[reset[t]], reward[reset[t]] = NO_ACTION, 0.0
        q_values, state = network(observations[t], reset_state(state, reset[t]), action, reward)
        torch.testing.assert_close(unrolled.q_values[t], q_values)
    torch.testing.assert_close(unrolled.state, state)


def test_dueling_heads_are_value_plus_centred_advantage() -> None:
    heads = build_q_network(VECTOR, spaces.Discrete(3), lstm_size=8, dueling_size=8).heads
    features = torch.randn(5, 8)
    torch.testing.assert_close(heads(features).mean(-1), heads.value(features).squeeze(-1))


def test_q_networks_refuse_continuous_actions() -> None:
    with pytest.raises(UserError, match="Discrete"):
        build_q_network(VECTOR, spaces.Box(-1, 1, (2,)))
