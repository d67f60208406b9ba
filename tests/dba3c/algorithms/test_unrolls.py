"""The unroll store as tables of ids and values; and the shift of one record between an action and its reward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dba3c.algorithms.unrolls import Unrolls, UnrollStore, unrolled_rollout
from dba3c.networks import NetworkOutput


def append(
    store: UnrollStore, environments: list[int], values: list[int], incarnations: list[int] | None = None
) -> Unrolls | None:
    records = {"value": np.array(values), "pixels": np.array(values, dtype=np.uint8)[:, None]}
    state = (np.array(values, dtype=np.float32)[:, None] / 10,)
    return store.append(np.array(environments), np.array(incarnations or [0] * len(values)), records, state)


def test_unrolls_complete_and_overlap_by_one_record() -> None:
    store = UnrollStore(2)
    assert append(store, [7], [1]) is None
    assert append(store, [7], [2]) is None
    first = append(store, [7], [3])
    assert first is not None
    assert first.environments.tolist() == [7]
    assert first.records["value"].tolist() == [[1], [2], [3]]
    assert first.records["pixels"].shape == (3, 1, 1) and first.records["pixels"].dtype == np.uint8
    assert append(store, [7], [4]) is None
    second = append(store, [7], [5])
    assert second is not None and second.records["value"].tolist() == [[3], [4], [5]]


def test_the_state_is_the_one_before_the_first_record() -> None:
    store = UnrollStore(2)
    unrolls = [append(store, [7], [value]) for value in (1, 2, 3, 4, 5)]
    states = [unroll.state[0].tolist() for unroll in unrolls if unroll]
    assert states == [[[pytest.approx(0.1)]], [[pytest.approx(0.3)]]]


def test_environments_complete_each_at_its_own_pace() -> None:
    store = UnrollStore(2)
    append(store, [1, 2, 3], [10, 20, 30])
    append(store, [3, 1], [31, 11])
    done = append(store, [2, 3, 1], [21, 32, 12])
    assert done is not None
    assert done.environments.tolist() == [3, 1]
    assert done.records["value"].T.tolist() == [[30, 31, 32], [10, 11, 12]]
    assert append(store, [1], [13]) is None
    late = append(store, [2], [22])
    assert late is not None and late.records["value"].T.tolist() == [[20, 21, 22]]


def test_a_restarted_environment_drops_its_partial_unroll() -> None:
    store = UnrollStore(2)
    append(store, [5], [1])
    append(store, [5], [2])
    assert append(store, [5], [100], [1]) is None
    append(store, [5], [101], [1])
    done = append(store, [5], [102], [1])
    assert done is not None and done.records["value"].T.tolist() == [[100, 101, 102]]


def test_a_late_record_of_a_dead_incarnation_is_dropped_and_counted() -> None:
    store = UnrollStore(2)
    append(store, [5], [100], [3])
    assert append(store, [5], [7], [2]) is None
    append(store, [5], [101], [3])
    done = append(store, [5, 6], [102, 1], [3, 0])
    assert done is not None and done.records["value"].T.tolist() == [[100, 101, 102]]
    assert store.stale_records == 1


def test_an_environment_named_twice_is_refused_before_anything_changes() -> None:
    store = UnrollStore(1)
    with pytest.raises(ValueError, match="twice"):
        append(store, [5, 5], [1, 2])
    append(store, [5], [1])
    assert append(store, [5], [2]) is not None


def test_a_forgotten_environment_leaves_room_for_another() -> None:
    store = UnrollStore(1)
    append(store, [5], [1], [4])
    store.forget(5)
    store.forget(99)
    assert append(store, [8], [2]) is None
    done = append(store, [8], [3])
    assert done is not None and done.records["value"].T.tolist() == [[2, 3]]
    assert append(store, [5], [9]) is None  # it is new again, whatever its incarnation


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["step"] * 8 + ["restart"])), max_size=150))
def test_any_order_of_arrivals_gives_each_environments_own_sequence(events: list[tuple[int, str]]) -> None:
    store, length = UnrollStore(3), 3
    incarnations, steps = dict.fromkeys(range(21), 0), {e: [] for e in range(21)}  # type: ignore[var-annotated]
    for number, (environment, event) in enumerate(events):
        if event == "restart":
            incarnations[environment] += 1
            steps[environment] = []
        steps[environment].append(number)
        done = append(store, [environment], [number], [incarnations[environment]])
        mine = steps[environment]
        complete = len(mine) > length and (len(mine) - 1) % length == 0
        assert (done is not None) is complete
        if done is not None:
            assert done.records["value"][:, 0].tolist() == mine[-length - 1 :]


def test_a_reward_stands_one_record_after_the_action_that_earned_it() -> None:
    output = NetworkOutput(torch.arange(3.0).reshape(3, 1, 1), torch.tensor([[5.0], [6.0], [7.0]], requires_grad=True))
    records = {
        "action": torch.tensor([[0], [1], [2]]),
        "reward": torch.tensor([[9.0], [10.0], [11.0]]),
        "terminated": torch.tensor([[True], [False], [False]]),
        "truncated": torch.tensor([[False], [False], [True]]),
        "valid": torch.tensor([[False], [True], [True]]),
    }
    rollout = unrolled_rollout(output, records)
    assert rollout.actions.tolist() == [[0], [1]]
    assert rollout.rewards.tolist() == [[10.0], [11.0]]
    assert rollout.truncated.tolist() == [[False], [True]] and not rollout.terminated.any() and rollout.valid.all()
    assert rollout.values.tolist() == [[5.0], [6.0]] and rollout.values.requires_grad
    assert rollout.bootstrap_value.tolist() == [7.0] and not rollout.bootstrap_value.requires_grad
