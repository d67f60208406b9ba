"""One shard's gradient slices: at most once, finite, and summed in a fixed order."""

from typing import get_args

import numpy as np
import pytest
import torch

from param_servers.config import OptimizerConfig, OptimizerName
from param_servers.errors import ParamServersError
from param_servers.servers.shard import LARGEST, Accumulator, Shard, is_usable, mean_into
from param_servers.wire.messages import Code, Row


def test_a_slice_is_held_until_its_step_is_committed() -> None:
    accumulator = Accumulator(3)
    assert accumulator.add(1, 0, 1, 0, torch.ones(3)) == Code.NONE
    assert accumulator.add(0, 0, 1, 0, torch.zeros(3)) == Code.NONE
    rows = [Row(1, 0, 1), Row(0, 0, 1)]
    assert [gradient[0].item() for gradient in accumulator.gradients(rows)] == [0.0, 1.0]
    accumulator.committed(rows)
    assert accumulator.step == 1


def test_a_repetition_is_recognised_before_and_after_the_commit() -> None:
    accumulator = Accumulator(3)
    accumulator.add(0, 0, 1, 0, torch.ones(3))
    assert accumulator.add(0, 0, 1, 0, torch.zeros(3)) == Code.ACCEPTED
    assert accumulator.gradients([Row(0, 0, 1)])[0].sum() == 3
    accumulator.committed([Row(0, 0, 1)])
    assert accumulator.add(0, 0, 1, 0, torch.ones(3)) == Code.ACCEPTED


def test_the_answer_to_a_push_leaves_the_next_one_of_its_worker_alone() -> None:
    accumulator = Accumulator(3, keeps_older=True)
    accumulator.add(0, 0, 1, 0, torch.ones(3))
    assert accumulator.add(0, 0, 2, 0, 2 * torch.ones(3)) == Code.NONE
    accumulator.decide(Row(0, 0, 1))
    assert accumulator.gradients([Row(0, 0, 2)])[0].sum() == 6


def test_a_late_gradient_is_answered_as_stale() -> None:
    accumulator = Accumulator(3)
    accumulator.committed([])
    assert accumulator.add(0, 0, 1, 0, torch.ones(3)) == Code.STALE


def test_the_next_push_replaces_one_that_another_shard_rejected() -> None:
    accumulator = Accumulator(1)
    accumulator.add(0, 0, 1, 0, torch.tensor([1.0]))
    assert accumulator.add(0, 0, 2, 0, torch.tensor([2.0])) == Code.NONE
    assert accumulator.gradients([Row(0, 0, 2)])[0].item() == 2.0
    with pytest.raises(ParamServersError, match="push 1 of worker 0"):
        accumulator.gradients([Row(0, 0, 1)])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_is_rejected(value: float) -> None:
    assert Accumulator(3).add(0, 0, 1, 0, torch.tensor([0.0, value, 1.0])) == Code.NON_FINITE


def test_values_whose_sums_or_squares_would_overflow_count_as_not_finite() -> None:
    assert is_usable(torch.full((10,), LARGEST))
    assert is_usable(torch.tensor([-LARGEST, LARGEST]))
    assert not is_usable(torch.tensor([0.0, -3e38]))
    assert not is_usable(torch.tensor([3e38, -3e38]))
    assert not is_usable(torch.tensor([float("inf"), -float("inf")]))
    assert is_usable(torch.empty(0))


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        (torch.float16, float("nan")),
        (torch.bfloat16, float("inf")),
        (torch.float64, -float("inf")),
        (torch.float64, float("nan")),
    ],
)
def test_what_is_not_finite_is_so_in_any_type(dtype: torch.dtype, bad: float) -> None:
    assert is_usable(torch.ones(2, dtype=dtype))
    assert not is_usable(torch.tensor([1.0, bad], dtype=dtype))


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_the_largest_gradients_that_are_taken_leave_parameters_and_moments_finite(optimizer: OptimizerName) -> None:
    shard = Shard(torch.zeros(4), OptimizerConfig(optimizer=optimizer, learning_rate="0.1"))
    for _ in range(10):
        shard.apply([torch.full((4,), LARGEST)] * 100, 0.1)
    state = shard.optimizer_state().values()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (shard.parameters, *state))


def test_what_older_incarnations_pushed_is_forgotten() -> None:
    accumulator = Accumulator(1)
    accumulator.add(0, 0, 5, 0, torch.ones(1))
    accumulator.add(0, 1, 1, 0, torch.zeros(1))
    accumulator.forget(0, 0)
    assert accumulator.gradients([Row(0, 1, 1)])[0].item() == 0
    with pytest.raises(ParamServersError):
        accumulator.gradients([Row(0, 0, 5)])


def test_asynchronous_slices_of_older_steps_are_kept() -> None:
    accumulator = Accumulator(1, keeps_older=True)
    accumulator.committed([]), accumulator.committed([])
    assert accumulator.add(0, 0, 1, 0, torch.ones(1)) == Code.NONE
    accumulator.decide(Row(0, 0, 1))
    assert accumulator.add(0, 0, 1, 0, torch.ones(1)) == Code.ACCEPTED


def test_buffers_are_used_again() -> None:
    accumulator = Accumulator(2)
    buffer = accumulator.spare().fill_(0)
    accumulator.add(0, 0, 1, 0, buffer)
    accumulator.committed([Row(0, 0, 1)])
    assert accumulator.spare() is buffer


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_mean_is_the_sum_in_order_then_divided(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    gradients = [torch.randn(100, generator=generator) for _ in range(count)]
    expected = np.zeros(100, dtype=np.float32)
    for gradient in gradients:
        expected = expected + gradient.numpy()
    expected = expected / np.float32(count)
    mean = np.empty(100, dtype=np.float32)
    mean_into(mean, [gradient.numpy() for gradient in gradients])
    assert np.array_equal(mean, expected)


@pytest.mark.filterwarnings("error")
def test_a_mean_that_is_not_finite_is_no_warning_of_numpy() -> None:
    mean = np.empty(2, dtype=np.float32)
    mean_into(mean, [np.array(values, dtype=np.float32) for values in ([np.inf, 3e38], [-np.inf, 3e38])])
    assert not np.isfinite(mean).any()
