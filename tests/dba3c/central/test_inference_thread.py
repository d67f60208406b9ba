"""Sharing a process between inference and learning."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch

from dba3c.central.inference_thread import PATIENCE_S, Serving
from dba3c.metrics.writer import Sections
from param_servers.errors import PeerLost

BOUND_S = 20.0


class CountingStore:
    """A unroll is a number."""

    def __init__(self) -> None:
        self.unrolls: list[int] = []
        self.steps = 0

    @property
    def ready(self) -> int:
        return len(self.unrolls)

    def take(self, count: int) -> list[int]:
        taken, self.unrolls = self.unrolls[:count], self.unrolls[count:]
        return taken


class ScriptedService:
    """Makes one unroll each turn, or breaks."""

    def __init__(self, breaks: bool = False, silent: bool = False) -> None:
        self.store, self.policy = CountingStore(), ScriptedPolicy()
        self.actors, self.turns, self.most_ready = {0, 2}, 0, 0
        self.breaks, self.silent, self.closed = breaks, silent, "not yet"

    def turn(self, patience_s: float, sections: Sections) -> None:
        if self.breaks:
            raise PeerLost("the link layer broke")
        if self.silent:
            time.sleep(min(patience_s, 0.01))
            return
        self.turns += 1
        self.store.unrolls.append(self.turns)
        self.most_ready = max(self.most_ready, self.store.ready)

    def close(self, reason: str | None) -> None:
        self.closed = str(reason)


class ScriptedPolicy:
    def __init__(self) -> None:
        self.version = -1
        self.parameters = torch.zeros(0)

    def load(self, parameters: torch.Tensor, version: int) -> None:
        self.parameters, self.version = parameters, version


class ScriptedNetwork:
    device = torch.device("cpu")

    def load(self, parameters: torch.Tensor) -> None:
        self.parameters = parameters.clone()


def serving_of(service: Any, timeout_s: float = BOUND_S, most_ready: int = 3) -> Serving:
    return Serving(service, range(3), timeout_s, ScriptedNetwork(), most_ready)  # type: ignore[arg-type]


def test_the_service_runs_ahead_but_not_further_than_allowed() -> None:
    service: Any = ScriptedService()
    serving = serving_of(service)
    serving.publish(torch.ones(2), 0)
    collected: list[Any] = []
    while len(collected) < 15:
        collected += serving.collect(3, Sections())
    serving.close("done")
    assert collected == list(range(1, 16))
    assert service.most_ready <= 3
    assert service.closed == "done"


def test_published_weights_are_a_copy_that_the_exchange_may_overwrite() -> None:
    service: Any = ScriptedService()
    serving, parameters = serving_of(service), torch.ones(2)
    serving.publish(parameters, 5)
    parameters.fill_(9.0)
    deadline_s = time.monotonic() + BOUND_S
    while service.policy.version != 5:
        assert time.monotonic() < deadline_s
        serving.collect(1, Sections())
    serving.close(None)
    assert service.policy.parameters.tolist() == [1.0, 1.0]


def test_weights_are_taken_between_whatever_two_instructions_of_the_services_thread_they_are_published() -> None:
    service: Any = ScriptedService()
    serving, before = serving_of(service), sys.gettrace()
    serving.publish(torch.ones(2), 0)
    serving.close(None)  # this thread takes its part, so that it can be stopped anywhere
    for version in range(1000):  # the first only begins to trace: Python 3.12 sees no instructions before
        serving.publish(torch.ones(2), -version)
        left = version

        def trace(frame: Any, event: str, _: object, newest: int = version) -> Any:
            nonlocal left
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_name == "_take_weights":
                left -= 1
                if left == 0:
                    serving.publish(torch.ones(2), newest)
            return trace

        sys.settrace(trace)
        try:
            serving._take_weights()
        finally:
            sys.settrace(before)
        if left > 0:  # it has fewer instructions
            break
        serving._take_weights()
        assert service.policy.version == version
    assert 5 < version < 999


def test_what_breaks_in_the_services_thread_is_raised_in_the_learners() -> None:
    serving = serving_of(ScriptedService(breaks=True))
    serving.publish(torch.ones(2), 0)
    with pytest.raises(PeerLost, match="the link layer broke"):
        serving.collect(1, Sections())
    serving.close(None)


def test_shares_of_the_second_thread_s_time_are_of_a_second_and_more_whatever_gradients_it_had() -> None:
    serving, spent = serving_of(ScriptedService()), list[dict[str, float]]()
    serving.sections.take = lambda: spent.pop(0)  # type: ignore[method-assign]
    told = []
    for spent_s in ({"serving": 0.001}, {"holding": 0.9}, {"serving": 0.099}, {"inference": 2.0}):
        spent.append(spent_s)
        told += [serving.thread_shares()]
    assert told[:2] == [{}, {}]
    names = [f"inference_thread_{name}" for name in ("inference", "serving", "waiting", "holding")]
    assert told[2] == pytest.approx(dict(zip(names, (0, 0.1, 0, 0.9), strict=True)))
    assert told[3] == dict(zip(names, (1, 0, 0, 0), strict=True))


def test_a_thread_that_waits_for_the_learner_says_so() -> None:
    serving = serving_of(ScriptedService(), most_ready=1)
    serving.publish(torch.ones(2), 0)
    deadline_s = time.monotonic() + BOUND_S
    while "inference_thread_holding" not in serving.thread_shares():
        assert time.monotonic() < deadline_s
        serving.collect(1, Sections())
    serving.close(None)


def test_too_long_without_a_batch_names_the_missing_actors() -> None:
    serving = serving_of(ScriptedService(silent=True), timeout_s=0.1)
    serving.publish(torch.ones(2), 0)
    with pytest.raises(PeerLost, match="actors 1 are missing"):
        serving.collect(1, Sections())
    serving.close(None)


class Slow(Serving):
    """Each wait for a batch ends with so many steps of unrolls, none of which is complete."""

    def __init__(self, steps: list[int], timeout_s: float) -> None:
        service: Any = ScriptedService()
        super().__init__(service, range(0, 3, 2), timeout_s, ScriptedNetwork(), 3)  # type: ignore[arg-type]
        self.steps = iter(steps)

    def _wait_for(self, count: int, sections: Sections) -> None:
        self.service.store.steps = next(self.steps)  # type: ignore[misc]


def test_actors_that_step_slowly_are_waited_for_until_they_are_silent() -> None:
    serving = Slow([*[step // 3 for step in range(300)], 99, 99], 3 * PATIENCE_S)
    for _ in range(300):
        assert serving.collect(1, Sections()) == []
    with pytest.raises(PeerLost, match="no unroll has grown for 3 s: all actors are here, but silent"):
        for _ in range(2):
            serving.collect(1, Sections())


def test_actors_that_are_lost_before_an_unroll_is_full_are_not_waited_for_for_ever() -> None:
    serving = Slow([0, 1, 2, 3] * 20, 6 * PATIENCE_S)
    with pytest.raises(PeerLost, match="lost again and again"):
        for _ in range(12):
            serving.collect(1, Sections())


def test_time_that_the_learner_spent_elsewhere_is_no_silence_of_its_actors(monkeypatch):
    """It may have waited for other learners' gradients as long as it waits for actors, and answered nobody."""
    serving, now_s = Slow([0], 300.0), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now_s() + 1000)
    assert serving.collect(1, Sections()) == []
