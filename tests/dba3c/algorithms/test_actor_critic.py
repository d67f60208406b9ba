"""The loss: its terms, its masks, its scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dba3c.algorithms.actor_critic import ActorCriticLoss, actor_critic_loss
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.returns import Targets, lambda_returns
from dba3c.algorithms.rollout import Rollout
from dba3c.environments.protocol import Experience
from dba3c.networks.distributions import Categorical
from tests.dba3c.algorithms.rollouts import random_rollout

ACTIONS = spaces.Discrete(3)


def played(seed: int, length: int = 6, environments: int = 4) -> Rollout:
    rollout = random_rollout(seed, length, environments)
    rewards, terminated, truncated, valid, values, bootstrap = rollout.tensors()
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(length, environments, 3, generator=generator).requires_grad_()
    actions = torch.randint(0, 3, (length, environments), generator=generator)
    return Rollout(
        policy_logits=logits,
        values=values.requires_grad_(),
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        bootstrap_value=bootstrap,
        experience=Experience(),
        episodes=[],
    )


def numpy_loss(logits, values, actions, targets, valid, value_cost, entropy_cost):
    policy = value = entropy = 0.0
    for t, b in zip(*np.nonzero(valid), strict=True):
        probabilities = np.exp(logits[t, b]) / np.exp(logits[t, b]).sum()
        policy -= targets.advantages[t, b] * np.log(probabilities[actions[t, b]])
        value += 0.5 * value_cost * (values[t, b] - targets.values[t, b]) ** 2
        entropy -= (probabilities * np.log(probabilities)).sum()
    n = valid.size
    return policy / n, value / n, entropy / n, (policy + value - entropy_cost * entropy) / n


def test_the_loss_and_its_metrics_are_those_of_the_formula() -> None:
    for seed in range(10):
        rollout = played(seed)
        settings = AlgorithmConfig(discount=0.9, trace_lambda=0.8, value_cost=0.7)
        loss = ActorCriticLoss(ACTIONS, settings)(rollout, entropy_cost=0.03)
        masks = (rollout.rewards, rollout.terminated, rollout.truncated, rollout.valid)
        targets = lambda_returns(
            *masks, rollout.values.detach(), rollout.bootstrap_value, discount=0.9, trace_lambda=0.8
        )
        arrays = [tensor.detach().numpy() for tensor in (rollout.policy_logits, rollout.values, rollout.actions)]
        expected = numpy_loss(*arrays, Targets(*(t.numpy() for t in targets[:2])), rollout.valid.numpy(), 0.7, 0.03)
        names = ("loss_policy", "loss_value", "entropy", "loss_total")
        np.testing.assert_allclose([loss.metrics[name] for name in names], expected, rtol=1e-4)
        assert loss.total.item() == pytest.approx(loss.metrics["loss_total"])


def test_gradients_are_those_of_the_closed_form() -> None:
    rollout = played(5)
    settings = AlgorithmConfig(discount=0.9, value_cost=0.5)
    loss = ActorCriticLoss(ACTIONS, settings)(rollout, entropy_cost=0.0)
    loss.total.backward()
    masks = (rollout.rewards, rollout.terminated, rollout.truncated, rollout.valid)
    targets = lambda_returns(*masks, rollout.values.detach(), rollout.bootstrap_value, discount=0.9)
    weights = rollout.valid / rollout.valid.numel()
    probabilities = torch.softmax(rollout.policy_logits.detach(), -1)
    chosen = torch.nn.functional.one_hot(rollout.actions, 3)
    expected = (probabilities - chosen) * (targets.advantages * weights).unsqueeze(-1)
    torch.testing.assert_close(rollout.policy_logits.grad, expected)
    torch.testing.assert_close(rollout.values.grad, 0.5 * weights * (rollout.values.detach() - targets.values))


def test_steps_that_are_not_valid_give_no_gradient() -> None:
    rollout = played(7)
    assert not rollout.valid.all()
    ActorCriticLoss(ACTIONS, AlgorithmConfig())(rollout, entropy_cost=0.1).total.backward()
    assert not rollout.policy_logits.grad[~rollout.valid].any()
    assert not rollout.values.grad[~rollout.valid].any()


def test_a_rollout_without_a_valid_step_has_no_loss_and_no_gradient() -> None:
    rollout = played(2)
    nothing = replace(rollout, valid=torch.zeros_like(rollout.valid))
    loss = ActorCriticLoss(ACTIONS, AlgorithmConfig())(nothing, entropy_cost=0.1)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert not rollout.policy_logits.grad.any()


@pytest.mark.parametrize("vtrace", [False, True], ids=["n_step", "vtrace"])
def test_the_mean_of_two_workers_gradients_is_the_gradient_of_their_joint_batch(vtrace: bool) -> None:
    halves = [played(seed, environments=2) for seed in (11, 14)]
    assert len({int(half.valid.sum()) for half in halves} | {halves[0].valid.numel()}) == 3  # masked, and unequally
    tensors = [name for name, value in vars(halves[0]).items() if isinstance(value, torch.Tensor)]
    joined = {
        name: torch.cat([getattr(half, name).detach() for half in halves], 0 if name == "bootstrap_value" else 1)
        for name in tensors
    }
    joint = replace(halves[0], **joined)
    joint.policy_logits.requires_grad_()
    joint.values.requires_grad_()
    loss = ActorCriticLoss(ACTIONS, AlgorithmConfig())
    for rollout in (*halves, joint):
        older = acted_with(rollout) - 0.3 if vtrace else None
        loss(rollout, entropy_cost=0.01, behaviour_log_probs=older).total.backward()
    mean = torch.cat([half.policy_logits.grad for half in halves], 1) / 2
    torch.testing.assert_close(mean, joint.policy_logits.grad, rtol=1e-6, atol=1e-9)
    values = torch.cat([half.values.grad for half in halves], 1) / 2
    torch.testing.assert_close(values, joint.values.grad, rtol=1e-6, atol=1e-9)


def acted_with(rollout: Rollout) -> torch.Tensor:
    """[T, B] log π(a|x) of the policy itself."""
    return Categorical(rollout.policy_logits.detach()).log_prob(rollout.actions)


def test_the_vtrace_form_of_what_the_policy_itself_did_is_the_n_step_loss() -> None:
    plain, corrected = played(4), played(4)
    loss = ActorCriticLoss(ACTIONS, AlgorithmConfig())
    first = loss(plain, entropy_cost=0.01)
    second = loss(corrected, entropy_cost=0.01, behaviour_log_probs=acted_with(corrected))
    first.total.backward()
    second.total.backward()
    torch.testing.assert_close(first.total, second.total)
    torch.testing.assert_close(plain.policy_logits.grad, corrected.policy_logits.grad)


def test_old_behaviour_is_corrected_by_its_log_probabilities() -> None:
    rollout = played(6)
    loss = ActorCriticLoss(ACTIONS, AlgorithmConfig())
    now = acted_with(rollout)
    same = loss(rollout, entropy_cost=0.0, behaviour_log_probs=now).metrics
    plain = loss(rollout, entropy_cost=0.0).metrics
    assert {name: same[name] for name in plain} == pytest.approx(plain)
    surprised = loss(rollout, entropy_cost=0.0, behaviour_log_probs=now + 5).metrics  # π/μ = e⁻⁵
    assert abs(surprised["loss_policy"]) < 0.05 * abs(same["loss_policy"])
    assert surprised["importance_mean"] == pytest.approx(np.exp(-5), rel=1e-4)
    eager = loss(rollout, entropy_cost=0.0, behaviour_log_probs=now - 5).metrics  # π/μ = e⁵ is clipped
    assert eager["importance_mean"] == same["importance_mean"] == pytest.approx(1.0)


def test_a_value_that_is_its_target_costs_nothing() -> None:
    values = torch.ones(2, 2)
    loss = actor_critic_loss(
        Categorical(torch.zeros(2, 2, 3)),
        values,
        torch.zeros(2, 2),
        Targets(values, torch.zeros(2, 2)),
        torch.ones(2, 2, dtype=torch.bool),
        value_cost=1.0,
        entropy_cost=0.0,
        means={},
    )
    assert loss.total.item() == 0.0
    assert loss.metrics["entropy"] == pytest.approx(np.log(3))
    assert loss.metrics["max_probability"] == pytest.approx(1 / 3)
