"""Ctrl-C at any moment of a pull or a push: no gradient is shifted, none counts twice, and the worker may go on."""

import threading
from typing import Any

import pytest
import torch

from param_servers.config import OptimizerConfig
from param_servers.errors import RunStopped
from param_servers.exchange import Receipt
from param_servers.layout import FlatLayout, plan_shards
from param_servers.wire.frames import Frame, Link
from tests.param_servers.servers.test_joining import Serving

SGD = OptimizerConfig(optimizer="sgd", learning_rate="1")


def test_a_push_that_is_interrupted_counts_as_it_was_and_the_worker_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving(num_workers=2) as run:
        first, second = run.worker(), run.worker(worker=1)
        gradient = torch.ones(8)
        step = first.pull().step
        with monkeypatch.context() as pressed:
            pressed.setattr(first, "_wait", _ctrl_c)
            with pytest.raises(KeyboardInterrupt):
                first.push(gradient, step, 1)
        gradient.fill_(1e6)  # the next rollout's, in the same buffer
        answers: list[Receipt] = []
        step = first.pull().step  # before the other one's gradient ends the step
        again = threading.Thread(target=lambda: answers.append(first.push(gradient, step, 1)))
        again.start()
        before = second.pull().parameters.clone()
        assert second.push(torch.ones(8), step, 1).accepted
        again.join(20)
        assert answers == [Receipt(False, 1, "stale")]  # of version 0 as well, which the first one was committed to
        moved = second.pull().parameters - before
        assert second.pull().step == 1 and torch.all(moved.abs() < 1)
        first.close(), second.close()


def test_an_answer_that_comes_with_the_end_of_the_run_is_given_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Serving(num_workers=1) as run:
        worker = run.worker()
        step, turn = worker.pull().step, worker._turn

        def hears_both(timeout_s: float) -> bool:
            heard = turn(timeout_s)
            if worker.state.open_push is None and worker.stopped is None:  # the answer is there
                worker.stopped = "enough", False
                turn(0.0)
            return heard

        with monkeypatch.context() as context:
            begin_push = worker.begin_push

            def begin(*push: Any) -> Any:
                context.setattr(worker, "_turn", hears_both)
                return begin_push(*push)

            context.setattr(worker, "begin_push", begin)
            assert worker.push(torch.ones(8), step, 1) == Receipt(True, 1)
        with pytest.raises(RunStopped, match="enough"):
            worker.pull()
        worker.close()


@pytest.mark.parametrize("goes_on", [True, False])
def test_bytes_that_an_interrupt_left_uncounted_shift_no_gradient(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has taken them, and Ctrl-C comes before they are counted: all was sent from the old place."""
    length, pressed, send_some = 100_000, threading.Event(), Link._send_some

    def send_uncounted(link: Link, frame: Frame) -> None:
        if len(frame.payload) == 4 * length and not pressed.is_set():
            link.sock.sendmsg([frame.header, frame.payload[:4000]])
            pressed.set()
            raise KeyboardInterrupt
        send_some(link, frame)

    with Serving(2, plan_shards(FlatLayout.of({"w": (length,)}), 1), SGD) as run:
        first, second = run.worker(), run.worker(worker=1)
        gradient, zeros, step = torch.linspace(0, 1, length), torch.zeros(length), first.pull().step
        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
            context.setattr(Link, "_send_some", send_uncounted)
            first.push(gradient.clone(), step, 1)
        if not goes_on:
            first.close()
            first = run.worker()
        step = first.pull().step
        again = threading.Thread(target=lambda: first.push(zeros, step, 1))  # after the answer to the first
        again.start()
        before = second.pull().parameters.clone()
        assert second.push(zeros, step, 1).accepted
        again.join(60)
        moved = second.pull().parameters - before
        assert torch.equal(moved, -gradient / 2 if goes_on else zeros)
        first.close(), second.close()


def _ctrl_c(*_: object) -> float:
    raise KeyboardInterrupt
