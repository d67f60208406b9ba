"""Uniform replay: what goes in comes out, the oldest leaves, resets stay out."""

from __future__ import annotations

import numpy as np
import pytest

from dba3c.algorithms.sac import UniformReplay


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


def test_an_empty_replay_says_so() -> None:
    with pytest.raises(ValueError, match="empty"):
        UniformReplay(4, (1,), np.dtype(np.float32), 1).sample(1, np.random.default_rng(0))
