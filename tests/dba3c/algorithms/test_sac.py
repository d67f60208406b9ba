"""SAC: its three losses against NumPy, its targets, its networks, its replay."""

from __future__ import annotations

import copy
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dba3c.algorithms.sac import Transitions, UniformReplay, critic_targets, move_targets, sac_loss
from dba3c.errors import UserError
from dba3c.networks.sac_networks import ActionScaling, SacNetwork

OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(-2, 4, (2,), np.float32)


def network(seed: int = 0) -> SacNetwork:
    built = SacNetwork(OBSERVATIONS, ACTIONS, seed=seed, hidden=(8, 8))
    torch.nn.init.constant_(built.log_temperature, np.log(0.3))
    return built


def transitions(count: int = 6) -> Transitions:
    generator = torch.Generator().manual_seed(1)
    return Transitions(
        observations=torch.randn(count, 3, generator=generator),
        actions=torch.rand(count, 2, generator=generator) * 2 - 1,
        rewards=torch.randn(count, generator=generator),
        terminated=torch.arange(count) % 3 == 0,
        next_observations=torch.randn(count, 3, generator=generator),
    )


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_targets_are_the_soft_value_one_step_on() -> None:
    agent, other, batch = network(0), network(9), transitions()
    targets = critic_targets(agent, other.critics, batch, 0.9, seeded())
    with torch.no_grad():
        actions, log_probs = agent.policy(batch.next_observations).sample_and_log_prob(seeded())
        q_values = other.critics(batch.next_observations, actions).numpy()
    for i in range(6):
        soft = min(q_values[0, i], q_values[1, i]) - 0.3 * log_probs[i].item()
        expected = batch.rewards[i].item() + (0.0 if batch.terminated[i] else 0.9 * soft)
        assert targets[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def separate_gradients(agent: SacNetwork, other: SacNetwork, batch: Transitions) -> dict[str, torch.Tensor]:
    """Each loss differentiated by its own parameters, as the paper's algorithm does."""
    generator = seeded()
    targets = critic_targets(agent, other.critics, batch, 0.99, generator)
    first, second = agent.critics(batch.observations, batch.actions)
    critic_loss = 0.5 * (first - targets).square().mean() + 0.5 * (second - targets).square().mean()
    actions, log_probs = agent.policy(batch.observations).sample_and_log_prob(generator)
    actor_loss = (0.3 * log_probs - torch.minimum(*agent.critics(batch.observations, actions))).mean()
    temperature_loss = -(agent.log_temperature * (log_probs.detach() - 2.0)).mean()
    gradients = {}
    for prefix, loss in (("critics", critic_loss), ("actor", actor_loss), ("log_temperature", temperature_loss)):
        named = {name: p for name, p in agent.named_parameters() if name.startswith(prefix)}
        parts = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
        gradients |= dict(zip(named, parts, strict=True))
    return gradients


def test_one_backward_moves_each_part_by_its_own_loss_only() -> None:
    agent, other, batch = network(0), network(9), transitions()
    expected = separate_gradients(agent, other, batch)
    sac_loss(agent, other.critics, batch, 0.99, seeded()).total.backward()
    for name, parameter in agent.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])
    assert set(expected) == {name for name, _ in agent.named_parameters()}
    assert all(parameter.grad is None for parameter in other.critics.parameters())


def test_logged_terms_add_up() -> None:
    total, metrics = sac_loss(network(0), network(9).critics, transitions(), 0.99, seeded())
    parts = metrics["loss_policy"] + metrics["loss_critic"] + metrics["loss_temperature"]
    assert total.item() == pytest.approx(parts, rel=1e-4)
    assert metrics["temperature"] == pytest.approx(0.3, rel=1e-5)


def test_the_logged_value_is_what_the_critics_predict_and_not_their_target() -> None:
    agent, batch = network(0), transitions()
    _, metrics = sac_loss(agent, network(9).critics, batch, 0.99, seeded())
    first, second = agent.critics(batch.observations, batch.actions)
    assert metrics["value_mean"] == pytest.approx(torch.minimum(first, second).mean().item(), rel=1e-5)


def test_the_temperature_rises_when_the_entropy_is_below_its_target() -> None:
    agent = network(0)
    total, metrics = sac_loss(agent, network(9).critics, transitions(), 0.99, seeded())
    total.backward()
    target = -float(len(ActionScaling.of(ACTIONS).centre))
    assert agent.log_temperature.grad is not None  # descent goes the other way
    assert agent.log_temperature.grad.item() == pytest.approx(metrics["entropy"] - target, rel=1e-5)


def test_target_critics_start_as_a_copy_and_follow_at_the_polyak_rate() -> None:
    agent = network(0)
    target = copy.deepcopy(agent.critics).requires_grad_(False)
    before = [parameter.clone() for parameter in target.parameters()]
    with torch.no_grad():
        for parameter in agent.critics.parameters():
            parameter.add_(1.0)
    move_targets(target, agent.critics, 0.25)
    for old, new in zip(before, target.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_actions_are_mapped_to_the_box_and_back() -> None:
    for low, high in ((0.0, 0.0), (-3e38, 3e38)):
        with pytest.raises(UserError, match="SAC needs a Box whose bounds differ"):
            ActionScaling.of(spaces.Box(np.float32([-1.0, low]), np.float32([1.0, high])))
    scaling = ActionScaling.of(ACTIONS)
    inside = np.array([[-1.0, 0.5], [1.0, 0.0]], dtype=np.float32)
    outside = scaling.to_environment(inside)
    np.testing.assert_allclose(outside, [[-2, 2.5], [4, 1]])
    np.testing.assert_allclose(scaling.from_environment(outside), inside)


def test_unbounded_or_discrete_actions_are_refused() -> None:
    for space in (spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)):
        with pytest.raises(UserError, match="bounded"):
            SacNetwork(OBSERVATIONS, space)


def test_the_parameter_count_is_the_docstrings() -> None:
    pendulum = SacNetwork(OBSERVATIONS, spaces.Box(-2, 2, (1,)))
    assert sum(parameter.numel() for parameter in pendulum.parameters()) == 201_989


def insert(replay: UniformReplay, *numbers: int, valid: list[bool] | None = None) -> None:
    values = np.array(numbers, dtype=np.float32)
    columns = values[:, None]
    mask = np.array(valid) if valid else np.ones(len(numbers), dtype=bool)
    replay.insert(columns, columns / 100, values, values % 2 == 0, columns + 1, mask)


def held(replay: UniformReplay) -> set[int]:
    return set(replay.sample(500, np.random.default_rng(0)).transitions.rewards.int().tolist())


def test_a_sample_keeps_each_transition_together() -> None:
    replay = UniformReplay(10, (1,), np.dtype(np.float32), 1)
    insert(replay, 1, 2, 3)
    batch = replay.sample(50, np.random.default_rng(0)).transitions
    rewards = batch.rewards
    assert (batch.observations[:, 0] == rewards).all() and (batch.next_observations[:, 0] == rewards + 1).all()
    assert (batch.terminated == (rewards % 2 == 0)).all() and np.allclose(batch.actions[:, 0], rewards / 100)
    assert batch.observations.shape == (50, 1) and batch.actions.shape == (50, 1)


def test_the_oldest_transition_makes_room() -> None:
    replay = UniformReplay(4, (1,), np.dtype(np.float32), 1)
    insert(replay, 1, 2, 3)
    assert len(replay) == 3 and held(replay) == {1, 2, 3}
    insert(replay, 4, 5, 6)
    assert len(replay) == 4 and held(replay) == {3, 4, 5, 6}


def test_resets_are_not_inserted() -> None:
    replay = UniformReplay(4, (1,), np.dtype(np.float32), 1)
    insert(replay, 1, 2, 3, valid=[True, False, True])
    assert held(replay) == {1, 3}


def test_a_transition_is_fresh_until_an_update_has_used_it_and_again_once_it_is_overwritten() -> None:
    replay, rng = UniformReplay(4, (1,), np.dtype(np.float32), 1), np.random.default_rng(0)
    insert(replay, 1, 2, 3)
    dropped = replay.sample(100, rng)
    assert replay.fresh(dropped) == 3
    sample = replay.sample(2, rng)
    fresh = replay.fresh(sample)
    assert fresh == len(set(sample.rows.tolist()))
    replay.used(sample)
    assert replay.fresh(sample) == 0 and replay.fresh(replay.sample(100, rng)) == 3 - fresh
    replay.used(replay.sample(100, rng))
    insert(replay, 4, 5)  # 5 takes the place of 1
    assert replay.fresh(replay.sample(100, rng)) == 2


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell what it has given")
def test_a_replay_takes_memory_only_as_it_fills() -> None:
    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = pages()
    replay = UniformReplay(100_000, (512,), np.dtype(np.float32), 1)
    assert pages() - before < 0.1 * replay.memory_bytes / resource.getpagesize()
