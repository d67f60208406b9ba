"""Every exchange gives the parameters of one process with torch.optim, on the same fixed stream of gradients.

Bit-equal where the order of sums is the same: servers add in the order of workers, and a sum of two has only one order.
An all-reduce of three or more ranks adds in an order of its own: parameters of about 1 then differ by 1e-6 a step.
MPI and Horovod need their launchers: tests/integration/test_allreduce_processes.py holds them to the same reference.
"""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.config import OptimizerConfig
from param_servers.lanes import run_in_lanes
from param_servers.timeouts import Timeouts
from tests.param_servers.mode_runs import (
    ADAM,
    BATCH,
    MOMENTUM,
    RMSPROP,
    SHAPES,
    STEPS,
    LanesStream,
    Stream,
    flat_in,
    run_allreduce,
    run_local,
    run_majority,
    run_servers,
    train,
)


def check(results, expected, workers, exact=True):
    for parameters, data_points in results:
        assert data_points == STEPS * BATCH * workers
        assert torch.equal(parameters, results[0][0])
    if exact:
        assert torch.equal(results[0][0], expected)
    torch.testing.assert_close(results[0][0], expected, rtol=0, atol=1e-6 * STEPS)


@pytest.mark.parametrize("config", [ADAM, RMSPROP, MOMENTUM], ids=lambda config: config.optimizer)
def test_one_process_is_bit_equal_to_torch_optim(config):
    stream = Stream()
    check(run_local(stream, config, 1), stream.reference(config, 1), 1)


def test_four_servers_are_bit_equal_to_torch_optim_and_so_is_their_checkpoint(tmp_path):
    stream = Stream()
    results = run_servers(stream, ADAM, workers=3, servers=4, checkpoint_dir=tmp_path)
    saved = load_checkpoint(find_newest(tmp_path))
    assert saved.step == STEPS
    results.append((flat_in(stream.layout, saved.layout.views(saved.parameters)), saved.data_points))
    check(results, stream.reference(ADAM, 3), 3)


def test_one_asynchronous_worker_is_bit_equal_to_torch_optim():
    stream = Stream()
    check(run_servers(stream, ADAM, workers=1, servers=2, exchange="async"), stream.reference(ADAM, 1), 1)


class Float32Stream(Stream):
    """Drawn before the test changes torch's default dtype."""

    def __init__(self, workers):
        super().__init__()
        self.drawn = {
            (worker, step): Stream.gradient(self, self.layout, worker, step)
            for worker in range(workers)
            for step in range(STEPS)
        }

    def gradient(self, layout, worker, step):
        return flat_in(layout, self.layout.views(self.drawn[worker, step]))


@pytest.mark.parametrize(
    "run", [run_local, run_servers, run_allreduce, run_majority], ids=["local", "servers", "allreduce", "majority"]
)
def test_another_default_dtype_of_torch_changes_no_step(run):
    workers = 1 if run is run_local else 2
    stream = Float32Stream(workers)
    expected = stream.reference(ADAM, workers)
    torch.set_default_dtype(torch.float64)
    try:
        results = run(stream, ADAM, workers)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(parameters.dtype == torch.float32 for parameters, _ in results)
    torch.testing.assert_close(results[0][0], expected, rtol=0, atol=1e-6 * STEPS)


def run_async(stream, config, workers):
    return run_servers(stream, config, workers, servers=2, exchange="async")


@pytest.mark.parametrize(
    "run", [run_local, run_servers, run_async, run_allreduce, run_majority], ids=lambda run: run.__name__
)
def test_a_worker_of_several_lanes_is_bit_equal_to_one_process_over_every_exchange(run):
    lanes, workers = 3, 1 if run in (run_local, run_async) else 2
    stream = LanesStream(lanes)
    expected = stream.reference(RMSPROP, workers)

    def main(lane):
        stream.lane = lane
        if lane.index:
            train(None, stream.layout, stream, 0)
        else:
            per_worker = STEPS * BATCH * (lanes + workers - 1)
            for parameters, data_points in run(stream, RMSPROP, workers):
                assert data_points == per_worker and torch.equal(parameters, expected)
        return "agree"

    assert run_in_lanes(lanes, main, timeouts=Timeouts(step_timeout_s=30)) == "agree"


shapes = st.lists(st.lists(st.integers(1, 6), max_size=3).map(tuple), min_size=4, max_size=7)


rules = st.sampled_from([ADAM, RMSPROP])


@given(shapes, st.integers(1, 4), st.integers(1, 3), rules)
@settings(max_examples=12)
def test_any_shapes_shards_and_workers_over_servers_are_bit_equal_to_torch_optim(some, servers, workers, config):
    stream = Stream({f"tensor{i}": shape for i, shape in enumerate(some)})
    check(run_servers(stream, config, workers, servers), stream.reference(config, workers), workers)


@pytest.mark.parametrize("run", [run_allreduce, run_majority], ids=["allreduce", "majority"])
@given(shapes, st.integers(1, 3), rules)
@example([*SHAPES.values()], 2, ADAM)
@settings(max_examples=6)
def test_any_shapes_and_ranks_over_all_reduces_agree_with_torch_optim(run, some, workers, config):
    stream = Stream({f"tensor{i}": shape for i, shape in enumerate(some)})
    check(run(stream, config, workers), stream.reference(config, workers), workers, exact=workers <= 2)


class Regression(Stream):
    """Gradients of a real model: worker i holds the i-th part of one fixed batch of each step."""

    def __init__(self, workers):
        super().__init__({"weight": (1, 6), "bias": (1,)})
        self.workers = workers

    def gradient(self, layout, worker, step):
        generator = torch.Generator().manual_seed(step)
        inputs, targets = torch.randn(24, 6, generator=generator), torch.randn(24, 1, generator=generator)
        part = slice(worker * 24 // self.workers, (worker + 1) * 24 // self.workers)
        model = torch.nn.Linear(6, 1)
        fixed = torch.Generator().manual_seed(0)  # workers are threads here: the global generator is not a worker's own
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(generator=fixed)
        loss = (model(inputs[part]) - targets[part]).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        names = [name for name, _ in model.named_parameters()]
        return flat_in(layout, dict(zip(names, gradients, strict=True)))


@pytest.mark.parametrize("run", [run_servers, run_allreduce, run_majority], ids=["servers", "allreduce", "majority"])
def test_four_workers_of_batch_6_take_the_steps_of_one_of_batch_24(run):
    constant = OptimizerConfig(optimizer="rmsprop", learning_rate="0.01")
    (whole, _) = run_local(Regression(1), constant, 1)[0]
    for parts, _ in run(Regression(4), constant, 4):
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
