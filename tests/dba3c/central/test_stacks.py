"""Frame stacks rebuilt on the learner are those of the vector environment, bit for bit."""

import numpy as np
import pytest

from dba3c.central.actor import ActorGroup
from dba3c.central.unrolls import FrameRows, GroupKey, UnrollStore, Whole, batch_of
from dba3c.central.wire import GroupShape
from dba3c.environments import EnvironmentConfig, make_vector_environment


def test_a_stack_is_the_newest_frames_oldest_first() -> None:
    frames = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1, 1)
    out = np.empty((1, 3, 1, 1), np.uint8)
    FrameRows(frames, 3).stacks_into(4, out)
    assert out.ravel().tolist() == [2, 3, 4]


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
        group, store, key = ActorGroup(environments, shape, seed=1), UnrollStore(shape, length=7), GroupKey(0, 0, 0)
        store.begin(key, ())
        random, resets, views = np.random.default_rng(0), 0, 0
        seen, rebuilt = [twins.reset(seed=1)], np.empty((3, *shape.observation_shape), np.uint8)
        for _ in range(7 * 12 + 1):
            store.of(key).place(len(group.message))[:] = group.message
            store.arrived(key, len(group.message), ())
            store.of(key).observation_into(rebuilt)
            assert np.array_equal(rebuilt, seen[-1])
            view = store.of(key).observation_view()
            assert view is None or np.array_equal(view, seen[-1])
            views += view is not None
            group.actions[:] = random.integers(0, environments.action_space.n, 3)
            store.of(key).answer(group.actions, np.zeros(3, np.float32), version=0)
            step = twins.step(group.actions)
            seen.append(step.observation)
            resets += int((~step.valid).sum())
            group.step()
        assert resets >= 3
        assert views > 20 if config.grayscale or config.frame_stack == 1 else views == 0
        for index, unroll in enumerate(store.take(12)):
            assert np.array_equal(batch_of([unroll]).observation.numpy(), np.stack(seen[7 * index : 7 * index + 8]))
    finally:
        environments.close()
        twins.close()
