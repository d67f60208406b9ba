"""R2D2: value rescaling, n-step targets, the loss against a slow loop, priorities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from dba3c.algorithms.r2d2 import (
    Sequences,
    exploration_rate,
    n_step_targets,
    r2d2_loss,
    rescale,
    sequence_priorities,
    unrescale,
)
from dba3c.networks import reset_state
from dba3c.networks.q_networks import NO_ACTION, RecurrentQNetwork, build_q_network
from tests.dba3c.algorithms.rollouts import random_rollout


@given(st.floats(-1e5, 1e5, width=32))
def test_unrescaling_undoes_rescaling(x: float) -> None:
    value = torch.tensor(x)
    torch.testing.assert_close(unrescale(rescale(value)), value, rtol=1e-4, atol=1e-4)


def test_rescaling_by_hand() -> None:
    assert rescale(torch.tensor(3.0)).item() == pytest.approx(1.003)
    assert rescale(torch.tensor(-8.0)).item() == pytest.approx(-2.008)
    assert unrescale(torch.tensor(1.003)).item() == pytest.approx(3.0, rel=1e-5)


def test_exploration_rates_are_the_papers() -> None:
    rates = [exploration_rate(i, 8) for i in range(8)]
    assert rates == pytest.approx([0.4**k for k in range(1, 9)])
    assert exploration_rate(0, 1) == pytest.approx(0.4)


def slow_n_step(rewards, terminated, truncated, values, discount, n, t):
    total, scale = 0.0, 1.0
    for k in range(t, min(t + n, len(rewards))):
        total += scale * rewards[k]
        scale *= discount
        if terminated[k]:
            return total
        if truncated[k]:
            break
    return total + scale * values[k + 1]


@pytest.mark.parametrize("n_step", [1, 3, 5, 20])
def test_n_step_targets_are_those_of_the_definition(n_step: int) -> None:
    for seed in range(10):
        rollout = random_rollout(seed)
        values = np.concatenate((rollout.values, rollout.bootstrap_value[None]))
        tensors = [torch.from_numpy(array) for array in (*rollout[:4], values)]
        targets = n_step_targets(*tensors, discount=0.9, n_step=n_step)
        for t, b in zip(*np.nonzero(rollout.valid), strict=True):
            sequence = [array[:, b] for array in rollout[:3]]
            expected = slow_n_step(*sequence, values[:, b], 0.9, n_step, t)
            np.testing.assert_allclose(targets[t, b], expected, rtol=1e-4, atol=1e-5)


def sequences(seed: int, network: RecurrentQNetwork, length: int = 9, batch: int = 4) -> Sequences:
    rollout = random_rollout(seed, length, batch)
    generator = torch.Generator().manual_seed(seed)
    return Sequences(
        observations=torch.randn(length + 1, batch, 3, generator=generator),
        actions=torch.randint(0, 2, (length, batch), generator=generator),
        rewards=torch.from_numpy(rollout.rewards),
        terminated=torch.from_numpy(rollout.terminated),
        truncated=torch.from_numpy(rollout.truncated),
        valid=torch.from_numpy(rollout.valid),
        first=torch.cat((torch.tensor([[True, False, False, True]]), torch.from_numpy(~rollout.valid))),
        previous_action=torch.tensor([1, 0, 1, 1])[:batch],
        previous_reward=torch.tensor([0.0, 1.0, -1.0, 2.0])[:batch],
        state=tuple(torch.randn(part.shape, generator=generator) for part in network.initial_state(batch)),
    )


def slow_q_values(network: RecurrentQNetwork, batch: Sequences) -> torch.Tensor:
    """[U+L+1, B, A], one step at a time from the stored state."""
    state, q_values = batch.state, []
    action, reward = batch.previous_action, batch.previous_reward
    for t in range(batch.observations.shape[0]):
        if t > 0:
            action, reward = batch.actions[t - 1], batch.rewards[t - 1]
        reset = batch.first[t]
        state = reset_state(state, reset)
        action, reward = torch.where(reset, NO_ACTION, action), torch.where(reset, 0.0, reward)
        q, state = network(batch.observations[t], state, action, reward)
        q_values.append(q)
    return torch.stack(q_values)


def small_network(seed: int) -> RecurrentQNetwork:
    return build_q_network(
        spaces.Box(-1, 1, (3,)), spaces.Discrete(2), seed=seed, lstm_size=6, dueling_size=5, hidden=(4,)
    )


@pytest.mark.parametrize("burn_in", [0, 3])
def test_the_loss_and_priorities_are_those_of_a_slow_loop(burn_in: int) -> None:
    online, target = small_network(1), small_network(2)
    weights = torch.tensor([1.0, 0.5, 0.25, 0.1])
    for seed in range(5):
        batch = sequences(seed, online)
        loss, priorities = r2d2_loss(online, target, batch, weights, discount=0.9, n_step=3, burn_in=burn_in)
        with torch.no_grad():
            q_online, q_target = slow_q_values(online, batch).numpy(), slow_q_values(target, batch).numpy()
        total, chosen = 0.0, []
        for b in range(4):
            errors = []
            best = q_online[:, b].argmax(-1)
            values = unrescale(torch.from_numpy(q_target[np.arange(len(best)), b, best])).numpy()
            flags = [array[:, b].numpy() for array in (batch.rewards, batch.terminated, batch.truncated)]
            for t in range(burn_in, 9):
                if not batch.valid[t, b]:
                    continue
                wanted = rescale(torch.tensor(slow_n_step(*flags, values, 0.9, 3, t))).item()
                chosen.append(q_online[t, b, batch.actions[t, b]])
                errors.append(wanted - chosen[-1])
            total += weights[b].item() * 0.5 * np.sum(np.square(errors))
            expected = 0.9 * np.max(np.abs(errors)) + 0.1 * np.mean(np.abs(errors))
            assert priorities[b].item() == pytest.approx(expected, rel=1e-3)
        assert loss.total.item() == pytest.approx(total / 4, rel=1e-3)  # a sum over time, a mean over sequences
        returns = unrescale(torch.tensor(np.array(chosen))).mean().item()
        assert loss.metrics["value_mean"] == pytest.approx(returns, rel=1e-3, abs=1e-5)
        assert loss.metrics["importance_mean"] == pytest.approx((1.0 + 0.5 + 0.25 + 0.1) / 4)


def test_the_burn_in_and_the_target_network_give_no_gradient() -> None:
    online, target = small_network(1), small_network(2)
    batch = sequences(3, online)
    batch = batch._replace(valid=torch.ones_like(batch.valid), observations=batch.observations.requires_grad_())
    loss, _ = r2d2_loss(online, target, batch, torch.ones(4), discount=0.99, n_step=5, burn_in=4)
    loss.total.backward()
    assert not batch.observations.grad[:4].any() and batch.observations.grad[4].any()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in online.parameters())


def test_priorities_by_hand() -> None:
    errors = torch.tensor([[1.0, -4.0], [3.0, 100.0], [0.0, 2.0]])
    valid = torch.tensor([[True, True], [True, False], [True, True]])
    assert sequence_priorities(errors, valid).tolist() == pytest.approx([0.9 * 3 + 0.1 * 4 / 3, 0.9 * 4 + 0.1 * 3])
