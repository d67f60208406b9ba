"""PPO: its clipped objective by hand, its minibatches, its first epoch."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces

from dba3c.algorithms.actor_critic import ActorCriticLoss, Loss
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.algorithms.ppo import PpoBatch, minibatches, normalised_advantages, ppo_batch, ppo_loss
from dba3c.algorithms.returns import lambda_returns
from dba3c.networks.distributions import Categorical
from param_servers.lanes import Lane, run_in_lanes
from param_servers.timeouts import Timeouts
from tests.dba3c.algorithms.test_actor_critic import played

COSTS = {"policy_clip": 0.2, "value_cost": 0.5}


def batch_of(points: int) -> PpoBatch:
    numbers = torch.arange(points, dtype=torch.float32)
    actions, valid = torch.zeros(points, dtype=torch.int64), torch.ones(points, dtype=torch.bool)
    return PpoBatch(numbers.unsqueeze(1), actions, *(numbers.clone() for _ in range(3)), valid)


def test_a_batch_holds_the_rollouts_positions_and_their_gae_targets() -> None:
    rollout = played(3)
    observations = torch.arange(rollout.valid.numel()).reshape(*rollout.valid.shape, 1)
    settings = AlgorithmConfig(discount=0.9, trace_lambda=0.8)
    policy = Categorical(rollout.policy_logits.detach())
    batch = ppo_batch(policy, rollout, observations, settings)
    masks = (rollout.rewards, rollout.terminated, rollout.truncated, rollout.valid)
    targets = lambda_returns(*masks, rollout.values.detach(), rollout.bootstrap_value, discount=0.9, trace_lambda=0.8)
    assert torch.equal(batch.observations, observations.flatten(0, 1))
    assert torch.equal(batch.advantages, targets.advantages.flatten())
    assert torch.equal(batch.value_targets, targets.values.flatten())
    assert torch.equal(batch.log_probs, policy.log_prob(rollout.actions).flatten())
    assert batch.data_points == int(rollout.valid.sum()) < rollout.valid.numel()


def test_each_epoch_visits_every_point_once_in_another_order() -> None:
    parts = list(
        minibatches(batch_of(10), AlgorithmConfig(ppo_epochs=2, ppo_minibatches=4), torch.Generator().manual_seed(0))
    )
    assert len(parts) == 8
    epochs = [[point for part in parts[i : i + 4] for point in part.advantages.tolist()] for i in (0, 4)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert all(torch.equal(part.advantages, part.observations.squeeze(1)) for part in parts)


def test_workers_with_few_points_keep_step_with_the_others() -> None:
    parts = list(minibatches(batch_of(2), AlgorithmConfig(ppo_epochs=1, ppo_minibatches=4), torch.Generator()))
    assert [len(part.actions) for part in parts] == [1, 1, 0, 0]
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = ppo_loss(
        Categorical(logits),
        torch.zeros(0),
        parts[-1],
        torch.zeros(0),
        policy_clip=0.2,
        value_cost=0.5,
        entropy_cost=0.01,
    )
    assert loss.total.item() == 0.0 and all(value == 0.0 for value in loss.metrics.values())


def one_point(ratio: float, advantage: float) -> tuple[float, float]:
    """Loss, and its slope in the ratio, of one point."""
    log_prob = torch.tensor([0.5]).log()
    logits = torch.cat(((0.5 * torch.tensor([ratio])).log(), (1 - 0.5 * torch.tensor([ratio])).log()))
    logits = logits.unsqueeze(0).requires_grad_()
    zero = torch.zeros(1)
    batch = PpoBatch(zero, zero.long(), log_prob, zero, torch.tensor([advantage]), zero == 0)
    loss = ppo_loss(Categorical(logits), zero, batch, batch.advantages, **COSTS, entropy_cost=0.0)
    loss.total.backward()
    assert logits.grad is not None
    return loss.total.item(), logits.grad.abs().sum().item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.1, 2.0, -2.2, True),
        (1.5, 2.0, -2.4, False),  # good action, already likely enough
        (0.5, 2.0, -1.0, True),  # good action, too unlikely: pull back
        (0.5, -2.0, 1.6, False),  # bad action, already unlikely enough
        (1.5, -2.0, 3.0, True),
    ],
)
def test_the_clipped_objective_by_hand(ratio: float, advantage: float, loss: float, moves: bool) -> None:
    value, slope = one_point(ratio, advantage)
    assert value == pytest.approx(loss, abs=1e-5)
    assert (slope > 1e-6) is moves


def test_the_first_gradient_of_a_rollout_is_the_actor_critics() -> None:
    ours, theirs = played(5), played(5)
    settings = AlgorithmConfig(discount=0.9, trace_lambda=0.8)
    observations = torch.zeros(*ours.valid.shape, 1)
    batch = ppo_batch(Categorical(ours.policy_logits.detach()), ours, observations, settings)
    policy = Categorical(ours.policy_logits.flatten(0, 1))
    loss = ppo_loss(policy, ours.values.flatten(), batch, batch.advantages, **COSTS, entropy_cost=0.01)
    loss.total.backward()
    assert loss.metrics["clip_fraction"] == 0.0
    assert loss.metrics["kl_divergence"] == pytest.approx(0.0, abs=1e-6)
    reference = ActorCriticLoss(spaces.Discrete(3), AlgorithmConfig(discount=0.9, trace_lambda=0.8))
    reference(theirs, entropy_cost=0.01).total.backward()
    torch.testing.assert_close(ours.policy_logits.grad, theirs.policy_logits.grad)
    torch.testing.assert_close(ours.values.grad, theirs.values.grad)


def test_the_mean_of_two_workers_minibatches_is_their_joint_minibatch() -> None:
    settings = AlgorithmConfig(ppo_epochs=1, ppo_minibatches=3, trace_lambda=0.95)
    generator = torch.Generator().manual_seed(0)
    workers, whole = [played(seed, environments=2) for seed in (11, 14)], []
    for rollout in workers:
        observations = torch.arange(rollout.valid.numel()).reshape(*rollout.valid.shape, 1)
        batch = ppo_batch(Categorical(rollout.policy_logits.detach()), rollout, observations, settings)
        whole.append(list(minibatches(batch, settings, generator)))
    logits = torch.randn(24, 3, generator=generator)

    def gradient(part: PpoBatch, rows: torch.Tensor) -> torch.Tensor:
        parameters = logits[rows].clone().requires_grad_()
        policy, values = Categorical(parameters), parameters[:, 0]
        ppo_loss(policy, values, part, part.advantages, **COSTS, entropy_cost=0.01).total.backward()
        assert parameters.grad is not None
        return parameters.grad

    for first, second in zip(*whole, strict=True):
        joint = PpoBatch(*(torch.cat(pair) for pair in zip(first, second, strict=True)))
        rows = [part.observations.squeeze(1) for part in (first, second)]
        mean = torch.cat([gradient(part, at) / 2 for part, at in zip((first, second), rows, strict=True)])
        torch.testing.assert_close(mean, gradient(joint, torch.cat(rows)), rtol=1e-6, atol=1e-9)
    counts = [[part.data_points for part in parts] for parts in whole]
    assert counts[0] != counts[1]  # masked, and unequally


def loss_of(logits: torch.Tensor, batch: PpoBatch, entropy_cost: float) -> Loss:
    """As a worker has it: the minibatch's advantages are normalised. All values are 0."""
    policy, values = Categorical(logits), torch.zeros(len(logits))
    return ppo_loss(policy, values, batch, normalised_advantages(batch), **COSTS, entropy_cost=entropy_cost)


def test_lanes_normalise_advantages_by_those_of_them_all() -> None:
    batch = batch_of(8)
    whole = batch._replace(valid=torch.arange(8) != 2, advantages=torch.tensor([3.0, -1, 50, 2, 2, 7, -4, 1]))
    cut = (slice(0, 3), slice(3, 8))  # of unequal length, one with a position that does not train
    expected = normalised_advantages(whole)

    def main(lane: Lane) -> str:
        part = whole.at(torch.arange(8)[cut[lane.index]])
        torch.testing.assert_close(normalised_advantages(part, lane.total), expected[cut[lane.index]])
        return "agreed"

    assert run_in_lanes(2, main, timeouts=Timeouts(step_timeout_s=60)) == "agreed"


def test_positions_that_do_not_train_weigh_nothing_and_normalise_nothing() -> None:
    batch = batch_of(8)
    batch = batch._replace(
        valid=torch.arange(8) < 5, advantages=torch.cat((batch.advantages[:5], torch.full((3,), 9e9)))
    )
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = loss_of(logits, batch, 0.1)
    loss.total.backward()
    assert logits.grad is not None and not logits.grad[5:].any() and logits.grad[:5].any()
    alone = loss_of(logits[:5].detach(), PpoBatch(*(tensor[:5] for tensor in batch)), 0.1)
    assert loss.total.item() == pytest.approx(alone.total.item() * 5 / 8)
    assert loss.metrics["value_mean"] == alone.metrics["value_mean"]


def test_normalised_advantages_do_not_depend_on_the_scale_of_rewards() -> None:
    batch = batch_of(8)
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    batch = batch._replace(log_probs=Categorical(logits).log_prob(batch.actions), value_targets=torch.zeros(8))
    scaled = batch._replace(advantages=batch.advantages * 100 + 7)
    losses = [loss_of(logits, b, 0.0).metrics["loss_policy"] for b in (batch, scaled)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize(("trains", "advantage"), [(False, -1.0), (True, -1.0), (True, 1.0)])
def test_a_ratio_that_overflows_makes_no_gradient_nan(trains: bool, advantage: float) -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    policy, actions = Categorical(logits), torch.zeros(2, dtype=torch.int64)
    before = policy.log_prob(actions).detach() - torch.tensor([0.0, 200.0])
    advantages, valid = torch.tensor([1.0, advantage]), torch.tensor([True, trains])
    batch = PpoBatch(torch.zeros(2, 1), actions, before, advantages, torch.zeros(2), valid)
    loss = ppo_loss(policy, torch.zeros(2), batch, advantages, entropy_cost=0.0, **COSTS)
    loss.total.backward()
    assert torch.isfinite(loss.total) and logits.grad is not None and torch.isfinite(logits.grad).all()
    assert (logits.grad[0] != 0).any() and not (logits.grad[1] != 0).any()
