"""Unrolls: the shift of one, what begins and what is dropped, the stacks rebuilt from single frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dba3c.algorithms.frame_rows import FrameRows, Whole
from dba3c.central.actor import ActorGroup
from dba3c.central.unrolls import GroupKey, GroupUnroll, UnrollStore, observations_of, side_by_side
from dba3c.central.wire import GroupShape, pack_step
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment

SHAPE = GroupShape(
    num_envs=2, frame_stack=1, observation_shape=(1,), dtype="float32", action_shape=(), action_dtype="int64"
)
A, B = GroupKey(0, 0, 0), GroupKey(1, 0, 0)
T = 3


def say(store: UnrollStore, key: GroupKey, value: float, *, valid: bool = True, state: tuple = ()) -> None:
    """Message with observation ``value`` and ``value + 0.5``, reward 10·value."""
    message = np.zeros(SHAPE.most_bytes, np.uint8)
    observation = np.array([[value], [value + 0.5]], np.float32)
    reward, nothing = np.full(2, 10 * value, np.float32), np.zeros(2, bool)
    length = pack_step(SHAPE, message, observation, reward, (nothing, nothing, np.full(2, valid)), nothing)
    store.of(key).place(length)[:] = message[:length].data
    store.arrived(key, length, state)


def do(store: UnrollStore, key: GroupKey, action: int, version: int = 0) -> None:
    store.of(key).answer(np.full(2, action), np.full(2, -0.1 * action, np.float32), version)


def play(store: UnrollStore, key: GroupKey, first: int, steps: int) -> None:
    """Observations first, first + 1, …; the action is the observation's number, the version too."""
    for value in range(first, first + steps):
        say(store, key, value)
        do(store, key, value, version=value)


def test_an_unroll_is_complete_with_the_observation_after_its_last_action() -> None:
    store = UnrollStore(SHAPE, T)
    store.begin(A, ())
    play(store, A, 0, T)
    assert store.ready == 0
    say(store, A, T)
    assert store.ready == 1


def test_steps_of_unrolls_grow_with_each_answer_until_their_actor_is_lost_or_they_are_taken() -> None:
    store = UnrollStore(SHAPE, T)
    store.begin(A, ())
    store.begin(B, ())
    play(store, A, 0, T + 1)
    play(store, B, 0, 2)
    assert store.steps == T + 1 + 2
    store.drop(B)
    assert store.steps == T + 1
    store.take(1)
    assert store.steps == 1


def test_time_t_is_the_transition_from_observation_t_by_action_t_to_the_reward_of_the_next_message() -> None:
    store = UnrollStore(SHAPE, T)
    store.begin(A, ())
    play(store, A, 0, 2 * T + 1)
    first, second = store.take(2)
    assert observations_of([first])[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert first.actions[:, 0].tolist() == [0, 1, 2]
    assert first.rewards[1:, 0].tolist() == [10, 20, 30]
    np.testing.assert_allclose(first.log_probs[:, 1], [0, -0.1, -0.2], rtol=1e-6)
    assert first.versions.tolist() == [0, 1, 2]
    assert observations_of([second])[:, 1, 0].tolist() == [3.5, 4.5, 5.5, 6.5]
    assert second.actions[:, 0].tolist() == [3, 4, 5]
    assert second.rewards[1:, 0].tolist() == [40, 50, 60]


def test_groups_are_apart_and_lie_side_by_side_in_a_batch() -> None:
    store = UnrollStore(SHAPE, T)
    store.begin(A, ())
    store.begin(B, ())
    play(store, A, 0, T + 1)
    play(store, B, 100, T + 1)
    unrolls = store.take(2)
    assert observations_of(unrolls)[0, :, 0].tolist() == [0, 0.5, 100, 100.5]
    assert side_by_side(unroll.rewards for unroll in unrolls)[1].tolist() == [10, 10, 1010, 1010]


def test_a_restarted_actor_drops_its_partial_unroll() -> None:
    store = UnrollStore(SHAPE, T)
    store.begin(A, ())
    play(store, A, 0, 2)
    store.drop(A)
    again = A._replace(incarnation=1)
    store.begin(again, ())
    play(store, again, 50, T + 1)
    assert observations_of(store.take(1))[:, 0, 0].tolist() == [50, 51, 52, 53]
    with pytest.raises(KeyError):
        store.of(A)


def test_the_state_that_meets_an_unrolls_first_observation_is_kept_with_it() -> None:
    store = UnrollStore(SHAPE, T)
    store.begin(A, (torch.zeros(2, 5),))
    for value in range(2 * T + 1):
        say(store, A, value, state=(torch.full((2, 5), float(value)),))
        do(store, A, 0)
    first, second = store.take(2)
    assert first.initial_state[0][0, 0] == 0
    assert second.initial_state[0][0, 0] == T


def test_a_row_keeps_the_fixed_part_of_a_message_and_yet_the_last_one_may_be_as_long_as_any() -> None:
    shape = GroupShape(2, 4, (4, 3, 3), "uint8", (), "int64")
    unroll = GroupUnroll(shape, T, A, ())
    rows = unroll.history + T + 1
    assert unroll.frames.frames.strides[0] == shape.fixed_bytes < shape.most_bytes / 2
    message, ends = np.zeros(shape.most_bytes, np.uint8), np.zeros((3, 2), bool)
    for t in range(T + 1):
        observation = np.arange(72, dtype=np.uint8).reshape(2, 4, 3, 3) + t
        length = pack_step(shape, message, observation, np.full(2, t, np.float32), tuple(ends), ~ends[0])
        assert length == shape.most_bytes
        unroll.place(length)[:] = message.data
        unroll.arrived(length)
        seen = np.zeros_like(observation)
        unroll.observation_into(seen)
        np.testing.assert_array_equal(seen, observation)
        if t < T:
            unroll.answer(np.zeros(2, np.int64), np.zeros(2, np.float32), 0)
    assert len(unroll.frames.frames) == rows and unroll.rewards[:, 0].tolist() == [0, 1, 2, 3]


def test_a_whole_stack_covers_what_was_before_it_and_ages_out() -> None:
    frames = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1, 1)
    rows = FrameRows(frames, 3)
    rows.mark_whole(Whole(3, np.array([0]), np.array([70, 80], np.uint8).reshape(1, 2, 1, 1, 1)))
    out = np.empty((1, 3, 1, 1), np.uint8)
    seen = []
    for row in (2, 3, 4, 5):
        rows.stacks_into(row, out)
        seen.append(out.ravel().tolist())
    assert seen == [[0, 1, 2], [70, 80, 3], [80, 3, 4], [3, 4, 5]]


def test_of_two_whole_stacks_the_newer_one_counts() -> None:
    rows = FrameRows(np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1, 1), 3)
    for row, value in ((2, 50), (3, 60)):
        rows.mark_whole(Whole(row, np.array([0]), np.full((1, 2, 1, 1, 1), value, np.uint8)))
    out = np.empty((1, 3, 1, 1), np.uint8)
    rows.stacks_into(4, out)
    assert out.ravel().tolist() == [60, 3, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"max_episode_frames": 120, "frame_stack": 4},  # many resets, some of them close to an unroll's border
        {"episodic_life": True, "frame_stack": 4, "max_episode_frames": 160},
        {"frame_stack": 3, "grayscale": False, "max_episode_frames": 120},
        {"frame_stack": 1, "max_episode_frames": 120},
        {"frame_skip": (2, 4), "grayscale": False, "max_episode_frames": 150, "fire_on_reset": False},
    ],
)
def test_stacks_of_real_atari_are_equal_bit_for_bit_while_acting_and_in_batches(options: dict) -> None:
    config = EnvironmentConfig(env_id="ALE/Breakout-v5", **options)
    environments, twins = (make_vector_environment(config, num_envs=3, seed=1) for _ in range(2))
    try:
        shape = GroupShape.of(environments.observation_space, environments.action_space, 3, config.frame_stack)
        group, store, key = ActorGroup(environments, shape), UnrollStore(shape, length=7), GroupKey(0, 0, 0)
        store.begin(key, ())
        random, resets = np.random.default_rng(0), 0
        seen, rebuilt = [twins.reset()], np.empty((3, *shape.observation_shape), np.uint8)
        for _ in range(7 * 12 + 1):
            store.of(key).place(len(group.message))[:] = group.message
            store.arrived(key, len(group.message), ())
            store.of(key).observation_into(rebuilt)
            assert np.array_equal(rebuilt, seen[-1])
            group.actions[:] = random.integers(0, environments.action_space.n, 3)
            store.of(key).answer(group.actions, np.zeros(3, np.float32), version=0)
            step = twins.step(group.actions)
            seen.append(step.observation)
            resets += int((~step.valid).sum())
            group.step()
        assert resets >= 3
        for index, unroll in enumerate(store.take(12)):
            assert np.array_equal(observations_of([unroll]), np.stack(seen[7 * index : 7 * index + 8]))
    finally:
        environments.close()
        twins.close()
