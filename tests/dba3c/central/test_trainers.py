"""From unrolls to gradients: what the learner computes is the loss of what was seen and done, and nothing else."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from dba3c.algorithms.agent import FlatNetwork
from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import Spaces, build_model, build_policy, spaces_of
from dba3c.central.learner import build_trainer
from dba3c.central.r2d2 import R2d2Trainer
from dba3c.central.sac import SacTrainer
from dba3c.central.unrolls import GroupKey, UnrollStore, observations_of, side_by_side
from dba3c.central.vtrace import policy_lag, rollout_of
from dba3c.central.wire import TERMINATED, TRUNCATED, VALID, WHOLE, GroupShape, pack_step
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.metrics.writer import Sections
from param_servers.config import ExchangeConfig
from param_servers.exchange import Pull
from tests.dba3c.central.in_process import InProcessServing

CARTPOLE = TrainConfig(
    environment=EnvironmentConfig(env_id="CartPole-v1"),
    network=NetworkConfig(network="mlp"),
    algorithm=AlgorithmConfig(algorithm="vtrace", entropy_cost="0.01"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1, envs_per_actor=4, unroll_length=6, batch_unrolls=4),
)
MEMORY = replace(
    CARTPOLE,
    environment=EnvironmentConfig(env_id="tests.integration.games:make_memory_cue"),
    network=NetworkConfig(network="mlp_lstm"),
)


@pytest.mark.parametrize("config", [CARTPOLE, MEMORY], ids=["feed-forward", "lstm"])
def test_while_the_weights_are_those_that_acted_replaying_gives_the_probabilities_of_acting(
    config: TrainConfig,
) -> None:
    agent = build_model(config, spaces_of(config)).network
    serving = InProcessServing(config, build_policy(config, agent, spaces_of(config), seed=3))
    resets = 0
    for _ in range(6):  # over unrolls' borders and episodes' ends
        unrolls = serving.collect(2, Sections())
        rollout = rollout_of(agent, unrolls)  # type: ignore[arg-type]
        log_probs = agent.policy(rollout.policy_logits).log_prob(rollout.actions)  # type: ignore[attr-defined]
        acted = torch.from_numpy(side_by_side(unroll.log_probs for unroll in unrolls))
        torch.testing.assert_close(log_probs.detach(), acted, rtol=1e-4, atol=1e-5)
        flags = side_by_side(unroll.flags[1:] for unroll in unrolls)
        resets += int(((flags & WHOLE != 0) & (flags & VALID == 0)).sum())  # steps that led to a first observation
    assert resets > 0
    serving.close(None)


def test_the_gradient_is_that_of_the_vtrace_loss_written_out() -> None:
    config, length = replace(CARTPOLE, central=replace(CARTPOLE.central, unroll_length=40)), 40
    agent = build_model(config, spaces_of(config)).network
    serving = InProcessServing(config, build_policy(config, agent, spaces_of(config), seed=3))
    unrolls = serving.collect(2, Sections())
    for unroll in unrolls:  # cuts behind which games go on: a reset's step would say by itself that nothing does
        unroll.flags[3:length:7] |= TRUNCATED
    newer = agent.layout.flatten(agent.network) + 0.05 * torch.randn(
        agent.layout.numel, generator=torch.Generator().manual_seed(0)
    )
    agent.load(newer)
    trainer = build_trainer(config, agent, spaces_of(config), range(1), seed=0)
    assert not trainer.owes
    trainer.take(unrolls)
    assert trainer.owes
    update = trainer.update(Pull(newer, step=4, data_points=0))
    assert not trainer.owes
    flags = side_by_side(unroll.flags[1:] for unroll in unrolls)
    ended, cut, valid = (flags & bit != 0 for bit in (TERMINATED, TRUNCATED, VALID))
    assert (ended & valid).any() and (cut[:-1] & valid[:-1] & valid[1:]).any() and not valid.all()
    assert update.data_points == int(valid.sum())
    assert update.numbers["policy_lag_p50"] == 5  # weights of version −1 acted, those of step 4 learn
    assert set(policy_lag(np.array([[7]]), step=4).values()) == {0.0}  # what acted was undone by a roll-back
    gradient = update.gradient.clone()

    seen = torch.from_numpy(observations_of(unrolls)).flatten(0, 1)
    logits, values = (part.unflatten(0, (length + 1, 4)) for part in agent.network(seen)[:2])
    log_pi = logits[:-1].log_softmax(-1)
    actions = torch.from_numpy(side_by_side(unroll.actions for unroll in unrolls))
    acted = torch.from_numpy(side_by_side(unroll.log_probs for unroll in unrolls))
    taken = log_pi.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    ratio = (taken - acted).exp().clamp(max=1).detach().numpy() * valid
    v, r = values.detach().numpy(), side_by_side(unroll.rewards[1:] for unroll in unrolls)
    correction, advantage = np.zeros((length + 1, 4), np.float32), np.zeros((length, 4), np.float32)
    for t in reversed(range(length)):
        discount = 0.99 * ~ended[t]
        trace = discount * (~cut[t] & valid[t])
        error = r[t] + discount * v[t + 1] - v[t]
        advantage[t] = ratio[t] * (error + trace * correction[t + 1])
        correction[t] = ratio[t] * error + trace * ratio[t] * correction[t + 1]
    target, weight = torch.from_numpy(v[:-1] + correction[:-1]), torch.from_numpy(valid / np.float32(valid.size))
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    loss = (-(taken * torch.from_numpy(advantage)) + 0.25 * (values[:-1] - target).square() - 0.01 * entropy) * weight
    torch.testing.assert_close(gradient, agent.gradient_of(loss.sum()), rtol=1e-4, atol=1e-6)
    serving.close(None)


SHAPE = GroupShape(
    num_envs=2, frame_stack=1, observation_shape=(1,), dtype="float32", action_shape=(), action_dtype="int64"
)
R2D2 = replace(
    CARTPOLE,
    algorithm=AlgorithmConfig(algorithm="r2d2"),
    central=replace(CARTPOLE.central, actors=2, actor_groups=2, unroll_length=4),
    replay=ReplayConfig(
        replay_capacity=4000, replay_start=1, burn_in=2, memory_size=8, dueling_size=8, replay_batch=4
    ),
)  # fmt: skip


def r2d2_trainer() -> tuple[R2d2Trainer, FlatNetwork]:
    """Of 2 actors with 2 groups of 2 environments each, whose observations are single numbers."""
    spaces = Spaces(Box(-np.inf, np.inf, (1,), np.float32), Discrete(2))
    network = build_model(R2D2, spaces).network
    return R2d2Trainer(R2D2, network, SHAPE, range(2), seed=0), network


def tell(store: UnrollStore, key: GroupKey, times: range) -> None:
    """At each time every environment shows 1000 · its number + the time."""
    first = 2 * (2 * key.actor + key.group)
    for time in times:
        message, nothing = np.zeros(SHAPE.most_bytes, np.uint8), np.zeros(2, bool)
        observation = np.array([[1000 * first + time], [1000 * (first + 1) + time]], np.float32)
        begins = np.full(2, time == times.start)
        ends = (nothing, nothing, ~begins)
        length = pack_step(SHAPE, message, observation, np.ones(2, np.float32), ends, begins)
        store.of(key).place(length)[:] = message[:length].data
        store.arrived(key, length, (torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, 1)))
        store.of(key).answer(np.zeros(2, np.int64), np.zeros(2, np.float32), version=0)


def test_r2d2_keeps_a_place_for_every_environment_and_no_sequence_goes_on_across_a_broken_link() -> None:
    trainer, network = r2d2_trainer()
    store = UnrollStore(SHAPE, R2D2.central.unroll_length)
    for incarnation, times in enumerate((range(23), range(100, 121))):  # the first life ends within an unroll
        for actor, group in ((0, 0), (1, 1), (0, 1), (1, 0)):
            store.begin(GroupKey(actor, incarnation, group), (torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, 1)))
            tell(store, GroupKey(actor, incarnation, group), times)
        trainer.take(store.take(store.ready))
    sample = trainer._replay.sample(400, np.random.default_rng(0))
    found = set()
    for leaf, shown in zip(sample.leaves, sample.sequences.observations[:, :, 0].T, strict=True):
        assert torch.equal(shown.diff(), torch.ones(6))  # one environment's, of one life, without a gap
        place, (environment, time) = leaf // trainer._replay.blocks, divmod(int(shown[0]), 1000)
        found.add((place, environment, time >= 100))
    assert found == {(environment, environment, life) for environment in range(8) for life in (False, True)}
    assert trainer.owes
    update = trainer.update(Pull(network.layout.flatten(network.network), 0, 0))
    assert torch.isfinite(update.gradient).all() and update.gradient.abs().sum() > 0
    assert update.data_points > 0


def test_steps_that_were_gathered_before_there_was_a_sequence_are_not_owed_to_the_first_one() -> None:
    trainer, network = r2d2_trainer()
    pull = Pull(network.layout.flatten(network.network), 0, 0)
    store = UnrollStore(SHAPE, R2D2.central.unroll_length)
    for actor, group in ((0, 0), (0, 1), (1, 0), (1, 1)):
        store.begin(GroupKey(actor, 0, group), (torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, 1)))
        tell(store, GroupKey(actor, 0, group), range(9))
    unrolls, owed = store.take(store.ready), []
    for unroll in unrolls[::2] + unrolls[1::2]:  # the first one of each group, then its second
        trainer.take([unroll])
        owed.append(0)
        while trainer.owes:
            trainer.update(pull)
            owed[-1] += 1
    assert owed == [0, 0, 0, 0, 1, 1, 1, 0]  # 4 groups of 8 steps, each sampled 1.5 times, 16 at a time


@pytest.mark.parametrize(("frames", "shortest"), [(1, 2), (4, 4)])
def test_r2d2_says_in_one_line_that_unrolls_are_too_short(frames: int, shortest: int) -> None:
    shape = GroupShape(2, frames, (frames,), "float32", (), "int64")
    network = build_model(R2D2, Spaces(Box(-np.inf, np.inf, (frames,), np.float32), Discrete(2))).network
    for steps in range(1, shortest + 1):
        config = replace(R2D2, central=replace(R2D2.central, unroll_length=steps))
        refused = pytest.raises(UserError, match=f"unrolls of {shortest} steps or more here, got {steps}")
        with refused if steps < shortest else nullcontext():
            R2d2Trainer(config, network, shape, range(2), seed=0)


def test_a_learner_without_an_actor_says_so_and_does_not_wait() -> None:
    assert [list(R2D2.central.actors_of(learner, 2)) for learner in (0, 1)] == [[0], [1]]
    with pytest.raises(UserError, match="3 learners need as many actors or more, got 2"):
        R2D2.central.actors_of(2, 3)


def test_r2d2_keeps_its_priorities_where_a_loss_is_not_finite_and_leaves_the_gradient_to_the_exchange() -> None:
    trainer, network = r2d2_trainer()
    store, state = (
        UnrollStore(SHAPE, R2D2.central.unroll_length),
        (torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, 1)),
    )
    store.begin(GroupKey(0, 0, 0), state)
    tell(store, GroupKey(0, 0, 0), range(23))
    trainer.take(store.take(store.ready))
    parameters = network.layout.flatten(network.network)
    before = trainer._replay._weights.copy()
    network.load(torch.full_like(parameters, math.nan))
    update = trainer.update(Pull(network.layout.flatten(network.network), 0, 0))
    assert not torch.isfinite(update.gradient).all()
    np.testing.assert_array_equal(trainer._replay._weights, before)


@pytest.mark.parametrize("late", [False, True], ids=["accepted", "every_second_dropped"])
def test_a_replayed_step_is_a_data_point_when_an_accepted_update_first_uses_it(late: bool) -> None:
    trainer, network = r2d2_trainer()
    store = UnrollStore(SHAPE, R2D2.central.unroll_length)
    begun = (torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, 1))
    for actor, group in ((0, 0), (0, 1), (1, 0), (1, 1)):
        store.begin(GroupKey(actor, 0, group), begun)
        tell(store, GroupKey(actor, 0, group), range(23))
    trainer.take(store.take(store.ready))
    sequences = len(trainer._replay)
    pull = Pull(network.layout.flatten(network.network), 0, 0)
    points = []
    for number in range(200):
        update, accepted = trainer.update(pull), not (late and number % 2)
        trainer.answered(accepted)
        points.append(update.data_points if accepted else 0)
    assert 0 < points[0] <= 4 * R2D2.central.unroll_length  # four sequences, whatever was gathered
    assert points[-1] == 0
    assert sum(points) == sequences * R2D2.central.unroll_length


def test_sac_replays_each_action_with_what_it_led_to_and_only_a_termination_ends_a_value() -> None:
    config = replace(
        CARTPOLE,
        algorithm=AlgorithmConfig(algorithm="sac"),
        replay=ReplayConfig(replay_capacity=100, replay_start=1, hidden_size=8),
    )
    spaces = Spaces(Box(-np.inf, np.inf, (1,), np.float32), Box(-1, 1, (1,), np.float32))
    shape, key, length = GroupShape.of(spaces.observation, spaces.action, 2, 1), GroupKey(0, 0, 0), 6
    trainer = SacTrainer(config, build_model(config, spaces).network, spaces, seed=0)
    store = UnrollStore(shape, length)
    store.begin(key, ())
    for time in range(length + 1):  # at time 3 game 0 is over and game 1 is cut; at time 4 both have begun anew
        message, shown = np.zeros(shape.most_bytes, np.uint8), np.array([time, 100 + time], np.float32)
        over, begins = np.array([time == 3, False]), np.full(2, time in (0, 4))
        ends = (over, np.array([False, time == 3]), ~begins)
        size = pack_step(shape, message, shown[:, None], shown / 10, ends, begins)
        store.of(key).place(size)[:] = message[:size].data
        store.arrived(key, size, ())
        store.of(key).answer(shown[:, None] / 1000, np.zeros(2, np.float32), version=0)
    trainer.take(store.take(1))
    replay, found = trainer._replay, set()
    for row in range(len(replay)):
        (before,), (after,), (action,) = replay._observations[row], replay._next_observations[row], replay._actions[row]
        assert after == before + 1 and action == pytest.approx(before / 1000)
        assert replay._rewards[row] == pytest.approx(after / 10)
        found.add((int(before), bool(replay._terminated[row])))
    played = {(first + time, first + time == 2) for first in (0, 100) for time in (0, 1, 2, 4, 5)}
    assert len(replay) == len(played) and found == played
