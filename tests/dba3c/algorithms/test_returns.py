"""λ-returns and V-trace against the sums of their papers, by hand, and in their limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dba3c.algorithms.returns import lambda_returns
from tests.dba3c.algorithms.oracles import lambda_return, vtrace
from tests.dba3c.algorithms.rollouts import random_rollout


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).unsqueeze(1)


def flags(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(1)


def returns(rewards, values, bootstrap=10.0, *, terminated=None, truncated=None, valid=None, discount=0.5, lam=1.0):
    length = len(rewards)
    masks = [flags(*(given or [default] * length)) for given, default in ((terminated, 0), (truncated, 0), (valid, 1))]
    return lambda_returns(
        column(*rewards), *masks, column(*values), torch.tensor([bootstrap]), discount=discount, trace_lambda=lam
    )


def test_a_game_that_goes_on_bootstraps_from_the_value_after_the_rollout() -> None:
    targets = returns([1.0, 2.0, 4.0], [0.0, 0.0, 0.0], 8.0)
    assert targets.values.squeeze(1).tolist() == [4.0, 6.0, 8.0]  # 4 + 0.5·8; 2 + 0.5·8; 1 + 0.5·6


def test_a_terminated_game_does_not_bootstrap() -> None:
    targets = returns([1.0, 2.0, 0.0], [0.0, 0.0, 7.0], terminated=[0, 1, 0], valid=[1, 1, 0])
    assert targets.values.squeeze(1).tolist() == [2.0, 2.0, 7.0]
    assert targets.advantages.squeeze(1).tolist() == [2.0, 2.0, 0.0]


def test_a_truncated_game_bootstraps_from_the_value_of_its_last_observation() -> None:
    targets = returns([1.0, 2.0, 0.0, 5.0], [0.0, 0.0, 6.0, 1.0], truncated=[0, 1, 0, 0], valid=[1, 1, 0, 1])
    # step 1: 2 + 0.5·6 = 5; step 0: 1 + 0.5·5; step 2 is the reset; step 3: 5 + 0.5·10
    assert targets.values.squeeze(1).tolist() == [3.5, 5.0, 6.0, 10.0]


def test_a_game_truncated_at_the_last_step_bootstraps_from_the_value_after_the_rollout() -> None:
    assert returns([1.0], [0.0], 4.0, truncated=[1]).values.item() == 3.0


def test_a_lost_life_ends_the_return_and_the_next_step_is_experience() -> None:
    targets = returns([1.0, 2.0, 4.0], [0.0, 0.0, 0.0], 8.0, terminated=[0, 1, 0])
    assert targets.values.squeeze(1).tolist() == [2.0, 2.0, 8.0]


def test_a_rollout_that_begins_with_the_reset_counts_from_the_step_after() -> None:
    targets = returns([0.0, 2.0], [3.0, 0.0], 8.0, valid=[0, 1])
    assert targets.values.squeeze(1).tolist() == [3.0, 6.0]
    assert targets.advantages[0].item() == 0.0


def test_lambda_0_is_one_step_td() -> None:
    targets = returns([1.0, 2.0], [3.0, 4.0], 8.0, lam=0.0)
    assert targets.values.squeeze(1).tolist() == [1 + 0.5 * 4, 2 + 0.5 * 8]


@pytest.mark.parametrize("trace_lambda", [0.0, 0.5, 0.95, 1.0])
def test_returns_are_the_mixture_of_the_textbook(trace_lambda: float) -> None:
    for seed in range(20):
        rollout = random_rollout(seed)
        targets = lambda_returns(*rollout.tensors(), discount=0.9, trace_lambda=trace_lambda)
        for t, b in zip(*np.nonzero(rollout.valid), strict=True):
            sequence = [array[:, b] for array in rollout[:3]]
            value, bootstrap = rollout.values[:, b], rollout.bootstrap_value[b]
            expected = lambda_return(*sequence, value, bootstrap, 0.9, trace_lambda, t)
            np.testing.assert_allclose(targets.values[t, b], expected, rtol=1e-4, atol=1e-5)


def test_nothing_leaks_over_the_end_of_a_game() -> None:
    for seed in range(20):
        rollout = random_rollout(seed)
        targets = lambda_returns(*rollout.tensors(), discount=0.9)
        ends = rollout.terminated | rollout.truncated
        t, b = (int(i) for i in np.argwhere(ends[:-2])[0])
        rollout.rewards[t + 1 :, b] += 100
        rollout.values[t + 2 :, b] -= 100
        rollout.bootstrap_value[b] = -100
        changed = lambda_returns(*rollout.tensors(), discount=0.9)
        assert torch.equal(targets.values[: t + 1, b], changed.values[: t + 1, b])


def test_targets_carry_no_graph() -> None:
    rewards, terminated, truncated, valid, values, bootstrap = random_rollout(0).tensors()
    targets = lambda_returns(
        rewards, terminated, truncated, valid, values.requires_grad_(), bootstrap, discount=0.9, trace_lambda=0.9
    )
    assert not targets.values.requires_grad and not targets.advantages.requires_grad


@pytest.mark.parametrize("trace_lambda", [1.0, 0.9])
def test_targets_are_the_papers_sum(trace_lambda: float) -> None:
    for seed in range(15):
        rollout = random_rollout(seed)
        targets = lambda_returns(
            *rollout.tensors(),
            discount=0.9,
            trace_lambda=trace_lambda,
            log_ratios=torch.from_numpy(np.log(rollout.ratios)),
        )
        for b in range(rollout.rewards.shape[1]):
            sequence = [array[:, b] for array in rollout[:5]]
            values, advantages = vtrace(rollout.ratios[:, b], *sequence, rollout.bootstrap_value[b], 0.9, trace_lambda)
            np.testing.assert_allclose(targets.values[:, b], values, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(targets.advantages[:, b], advantages, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trace_lambda", [0.0, 0.9, 1.0])
def test_on_policy_vtrace_is_the_lambda_return(trace_lambda: float) -> None:
    for seed in range(20):
        inputs = random_rollout(seed).tensors()
        plain = lambda_returns(*inputs, discount=0.9, trace_lambda=trace_lambda)
        no_ratios = torch.zeros_like(inputs[0])
        corrected = lambda_returns(*inputs, discount=0.9, trace_lambda=trace_lambda, log_ratios=no_ratios)
        torch.testing.assert_close(corrected.values, plain.values)
        torch.testing.assert_close(corrected.advantages, plain.advantages)


def test_a_hand_computed_case() -> None:
    log_ratios = torch.log(torch.tensor([[0.5], [4.0]]))
    no = torch.zeros(2, 1, dtype=torch.bool)
    rewards, values = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [2.0]])
    targets = lambda_returns(rewards, no, no, ~no, values, torch.tensor([4.0]), discount=0.5, log_ratios=log_ratios)
    # t=1: ρ = 1: δ = 2 + 0.5·4 − 2 = 2, v = 4. t=0: ρ = c = 0.5: δ = 0.5·(1 + 0.5·2 − 1) = 0.5, v = 1 + 0.5 + 0.5·0.5·2
    assert targets.values.squeeze(1).tolist() == [2.0, 4.0]
    assert targets.advantages.squeeze(1).tolist() == [0.5 * (1 + 0.5 * 4 - 1), 2.0]


def test_an_action_the_policy_would_never_take_teaches_nothing() -> None:
    inputs = random_rollout(1).tensors()
    targets = lambda_returns(*inputs, discount=0.9, log_ratios=torch.full_like(inputs[0], -float("inf")))
    assert not targets.advantages.any()
    assert torch.equal(targets.values, inputs[4])
