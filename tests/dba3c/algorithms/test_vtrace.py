"""V-trace against the sum of its paper, and its two limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dba3c.algorithms.returns import lambda_returns, vtrace_targets
from tests.dba3c.algorithms.oracles import vtrace
from tests.dba3c.algorithms.rollouts import random_rollout


@pytest.mark.parametrize("trace_lambda", [1.0, 0.9])
def test_targets_are_the_papers_sum(trace_lambda: float) -> None:
    for seed in range(15):
        rollout = random_rollout(seed)
        targets = vtrace_targets(
            torch.from_numpy(np.log(rollout.ratios)),
            *rollout.tensors(),
            discount=0.9,
            trace_lambda=trace_lambda,
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
        corrected = vtrace_targets(torch.zeros_like(inputs[0]), *inputs, discount=0.9, trace_lambda=trace_lambda)
        torch.testing.assert_close(corrected.values, plain.values)
        torch.testing.assert_close(corrected.advantages, plain.advantages)


def test_a_hand_computed_case() -> None:
    log_ratios = torch.log(torch.tensor([[0.5], [4.0]]))
    no = torch.zeros(2, 1, dtype=torch.bool)
    rewards, values = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [2.0]])
    targets = vtrace_targets(log_ratios, rewards, no, no, ~no, values, torch.tensor([4.0]), discount=0.5)
    # t=1: ρ = 1: δ = 2 + 0.5·4 − 2 = 2, v = 4. t=0: ρ = c = 0.5: δ = 0.5·(1 + 0.5·2 − 1) = 0.5, v = 1 + 0.5 + 0.5·0.5·2
    assert targets.values.squeeze(1).tolist() == [2.0, 4.0]
    assert targets.advantages.squeeze(1).tolist() == [0.5 * (1 + 0.5 * 4 - 1), 2.0]


def test_an_action_the_policy_would_never_take_teaches_nothing() -> None:
    inputs = random_rollout(1).tensors()
    targets = vtrace_targets(torch.full_like(inputs[0], -float("inf")), *inputs, discount=0.9)
    assert not targets.advantages.any()
    assert torch.equal(targets.values, inputs[4])
