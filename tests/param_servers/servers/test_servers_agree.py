"""Several servers at once, each with a slice: what they do ahead of each other, out of step, or not at all, agrees."""

import threading

import pytest
import torch
from torch import Tensor

from param_servers.errors import ParamServersError
from param_servers.exchange import MOST_REJECTED, Receipt, RunStopped
from param_servers.layout import FlatLayout
from param_servers.servers import cut_through
from param_servers.servers.cut_through import CutThrough
from param_servers.wire import frames
from param_servers.wire.messages import HEADER_BYTES, Row
from tests.param_servers.mode_runs import ADAM, BATCH, PATIENCE_S, Stream, run_servers
from tests.param_servers.servers.test_joining import PLAN_OF_TWO, Serving


def test_passing_on_and_waiting_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_on = []
    settle = CutThrough.settle

    def counted(cut_through: CutThrough, members: list[Row]) -> set[int] | None:
        streamed = settle(cut_through, members)
        passed_on.append(streamed is not None)
        return streamed

    monkeypatch.setattr(CutThrough, "settle", counted)
    monkeypatch.setattr(frames, "AHEAD_BYTES", HEADER_BYTES)  # a slice is never here with its header at once
    monkeypatch.setattr(frames, "READ_BUDGET_BYTES", 1)
    stream = Stream({"a": (50, 77), "b": (90, 90)})
    expected = stream.reference(ADAM, 2)
    for passes_on in (True, False):
        monkeypatch.setattr(cut_through, "LEAST_BYTES", 0 if passes_on else 1 << 40)
        results = run_servers(stream, ADAM, workers=2, servers=2)
        assert all(torch.equal(parameters, expected) for parameters, _ in results)
        assert any(passed_on) is passes_on
        passed_on.clear()


class CountedStream(Stream):
    """Each call is a push; nobody's first one begins before all have come, or one worker might do all the steps."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.all_here, self.pushed_by = threading.Barrier(workers), list[int]()

    def gradient(self, layout: FlatLayout, worker: int, step: int) -> Tensor:
        if worker not in self.pushed_by:
            self.all_here.wait(PATIENCE_S)
        self.pushed_by.append(worker)
        return super().gradient(layout, worker, step)


def test_asynchronous_training_counts_every_gradient_once() -> None:
    stream = CountedStream(workers=3)
    results = run_servers(stream, ADAM, workers=3, servers=2, exchange="async")
    assert max(data_points for _, data_points in results) == BATCH * len(stream.pushed_by)


def test_a_gradient_that_is_not_finite_is_answered_and_the_worker_may_try_again() -> None:
    with Serving(plan=PLAN_OF_TWO) as run:
        worker = run.worker()
        for where, value in ((0, float("nan")), (-1, float("nan")), (-1, 3e38)):  # in the slice of either server
            pull = worker.pull()
            bad = torch.ones(8)
            bad[where] = value
            assert worker.push(bad, pull.step, 1) == Receipt(False, 0, "non-finite")
        assert worker.push(torch.ones(3), 0, 1).reason == "wrong-length"
        assert worker.push(torch.ones(8), 5, 1).reason == "stale"
        assert run.trains(worker)
        run.end.set()
        with pytest.raises(RunStopped, match="enough"):
            while run.trains(worker):
                pass
        worker.close()


def test_a_worker_whose_gradients_are_never_finite_ends_and_says_that_it_has_diverged() -> None:
    """It had pushed them until the step timed out, which blamed nobody's numbers."""
    with Serving(plan=PLAN_OF_TWO) as run:
        worker, bad = run.worker(), torch.full((8,), float("nan"))
        for _ in range(MOST_REJECTED - 1):
            assert worker.push(bad, worker.pull().step, 1).reason == "non-finite"
        with pytest.raises(ParamServersError, match="none of the last 100 gradients was finite, the newest of step 0"):
            worker.push(bad, 0, 1)
        assert run.trains(worker)
        worker.close()
