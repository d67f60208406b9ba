"""Action distributions against torch.distributions, and their samples against their probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

from dba3c.errors import UserError
from dba3c.networks.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    TanhGaussian,
    distribution,
    parameter_count,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_action_that_the_network_masks_is_never_sampled_and_leaves_entropy_and_gradient_finite() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]]).repeat(1000, 1).requires_grad_()
    policy = Categorical(logits)
    assert set(policy.sample(generator()).tolist()) == {0, 1}
    (policy.log_prob(torch.zeros(1000, dtype=torch.int64)) + policy.entropy()).sum().backward()
    torch.testing.assert_close(policy.entropy(), torch.full((1000,), math.log(2)))
    assert torch.equal(logits.grad[0], torch.tensor([0.5, -0.5, 0.0]))


def test_a_categorical_agrees_with_torchs() -> None:
    logits = torch.randn(7, 5, generator=generator())
    ours, theirs = Categorical(logits), distributions.Categorical(logits=logits)
    actions = torch.randint(0, 5, (7,), generator=generator())
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), theirs.probs.argmax(-1))
    torch.testing.assert_close(ours.max_probability(), theirs.probs.amax(-1))


def test_categorical_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.6, 0.3, 0.1, 0.0])
    logits = probabilities.log().expand(20_000, 4)
    counts = torch.bincount(Categorical(logits).sample(generator(1)), minlength=4) / 20_000
    torch.testing.assert_close(counts, probabilities, atol=0.015, rtol=0)


def test_samples_are_a_function_of_the_generator() -> None:
    logits = torch.randn(50, 4, generator=generator())
    assert torch.equal(Categorical(logits).sample(generator(3)), Categorical(logits).sample(generator(3)))
    assert not torch.equal(Categorical(logits).sample(generator(3)), Categorical(logits).sample(generator(4)))


def test_sampling_leaves_the_graph_and_the_logits_alone() -> None:
    logits = torch.zeros(3, 4, requires_grad=True)
    policy = Categorical(logits * 1.0)
    action = policy.sample(generator())
    assert action.dtype == torch.int64 and not action.requires_grad
    policy.log_prob(action).sum().backward()
    assert logits.grad is not None


def test_a_multi_categorical_is_its_independent_parts() -> None:
    logits = torch.randn(6, 5, generator=generator())
    policy = MultiCategorical(logits, (3, 2))
    parts = [distributions.Categorical(logits=part) for part in logits.split([3, 2], -1)]
    actions = policy.sample(generator())
    assert actions.shape == (6, 2)
    torch.testing.assert_close(policy.log_prob(actions), sum(p.log_prob(actions[:, i]) for i, p in enumerate(parts)))
    torch.testing.assert_close(policy.entropy(), parts[0].entropy() + parts[1].entropy())
    best = parts[0].probs.amax(-1) * parts[1].probs.amax(-1)
    torch.testing.assert_close(policy.max_probability(), best)
    assert torch.equal(policy.mode()[:, 1], parts[1].probs.argmax(-1))


def test_a_diagonal_gaussian_agrees_with_torchs() -> None:
    parameters = torch.randn(6, 4, generator=generator())
    mean, log_std = parameters.chunk(2, -1)
    ours, theirs = DiagonalGaussian(parameters), distributions.Normal(mean, log_std.exp())
    actions = torch.randn(6, 2, generator=generator(1))
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    samples = DiagonalGaussian(torch.tensor([1.0, np.log(2.0)]).expand(20_000, 2)).sample(generator(2))
    assert samples.mean().item() == pytest.approx(1.0, abs=0.05)
    assert samples.std().item() == pytest.approx(2.0, abs=0.05)


def test_a_tanh_gaussian_agrees_with_torchs_transform() -> None:
    parameters = torch.randn(8, 6, generator=generator(), dtype=torch.float64) * 0.5
    mean, log_std = parameters.chunk(2, -1)
    normal = distributions.Normal(mean, log_std.exp())
    theirs = distributions.TransformedDistribution(normal, distributions.TanhTransform())
    actions, log_probs = TanhGaussian(parameters).sample_and_log_prob(generator(1))
    torch.testing.assert_close(log_probs, theirs.log_prob(actions).sum(-1))


def test_a_saturated_tanh_keeps_a_finite_density_and_gradient() -> None:
    parameters = torch.tensor([[40.0, 0.0]], requires_grad=True)
    action, log_prob = TanhGaussian(parameters).sample_and_log_prob(generator())
    assert action.item() == 1.0
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(parameters.grad).all()


@pytest.mark.parametrize(
    ("space", "count", "kind"),
    [
        (spaces.Discrete(6), 6, Categorical),
        (spaces.MultiDiscrete([3, 4]), 7, MultiCategorical),
        (spaces.Box(-math.inf, math.inf, (3,)), 6, DiagonalGaussian),
    ],
)
def test_spaces_have_their_distributions(space: spaces.Space, count: int, kind: type) -> None:
    assert parameter_count(space) == count
    policy = distribution(space, torch.zeros(2, count))
    assert isinstance(policy, kind)
    assert space.contains(policy.sample(generator())[0].numpy().astype(space.dtype))


def test_a_space_without_a_distribution_is_named() -> None:
    with pytest.raises(UserError, match="Text"):
        parameter_count(spaces.Text(3))
