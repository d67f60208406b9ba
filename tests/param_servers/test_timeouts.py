"""Who waits for whom, and who gives up first."""

import threading
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError
from param_servers.timeouts import (
    LONGEST_S,
    NOTICE_S,
    AwakeClock,
    LeavableThread,
    Redial,
    Restarts,
    clock_of_a_loop,
    within,
)
from tests.waiting import wait_until

WAITS = [  # who waits; what goes before the decision, in a row; by how much more it waits at least
    ("answer_s", ("join_s", "disk_s"), NOTICE_S),  # server 0 waits for servers, then for their disks
    ("answer_s", ("first_step_s", "server_return_s", "disk_s"), NOTICE_S),  # a server is lost in the first step
    ("first_step_s", ("step_s",), 0.0),  # after a roll-back a worker ends a step of the term before
    ("first_group_s", ("step_s",), 1.0),  # as any step of a group
    ("answer_s", ("step_s", "server_return_s", "disk_s"), NOTICE_S),  # a server is silent in a step
    ("answer_s", ("step_s", "server_return_s", "disk_s", "disk_s"), NOTICE_S),  # and a checkpoint is being published
    ("lane_s", ("other_start_s", "step_s"), 0.0),  # lane 0 waits for the servers, then for another lane
    ("lane_s", ("answer_s", "step_s"), 0.0),  # lane 0 waits for an answer, then for another lane
    ("actor_answer_s", ("answer_s",), NOTICE_S),  # an actor's learner waits for its servers
    ("actor_start_s", ("other_start_s",), NOTICE_S),  # an actor's learner waits for its servers at the start, too
    ("start_s", ("join_s",), NOTICE_S),  # server 0 decides about servers that do not come
    ("other_start_s", ("start_s", "join_s"), NOTICE_S),  # server 0 may come last, and then waits itself
    ("return_s", ("silence_s", "server_return_s"), NOTICE_S),  # server 0 may notice the loss later, and waits
    ("step_s", ("server_silence_s", "alive_every_s"), 0.0),  # a server that lives has been heard before that
    ("chief_silence_s", ("alive_every_s",) * 4, 0.0),  # a server 0 or chief that lives has been heard before that
    ("group_s", ("step_s",), 1.0),  # a rank may be in a sum when it is told to leave its group
    ("comm_turn_s", ("start_s",), NOTICE_S),  # the comm thread waits for the chief's address
    ("comm_turn_s", ("step_s",) * 5, NOTICE_S),  # the comm thread builds a group and takes over a state
    ("comm_turn_s", ("disk_s",), NOTICE_S),  # the comm thread writes the last checkpoint
    ("comm_leave_s", ("step_s", "disk_s"), NOTICE_S),  # the comm thread may be in a sum, and then saves
    ("first_sum_s", ("disk_s",), 0.0),  # rank 0 reads the checkpoint that all go on from
    ("lane_s", ("first_sum_s", "step_s"), 0.0),  # lane 0 waits for the other ranks' first gradients
    ("first_survivor_s", ("disk_s",), NOTICE_S),  # MPI ends all ranks when one leaves
    ("servers_end_s", ("join_s", "disk_s"), NOTICE_S),  # server 0 waits for workers, then saves
    ("servers_end_s", ("return_s",), NOTICE_S),  # a server waits for server 0, which is gone
    ("servers_end_s", ("server_return_s", "disk_s"), NOTICE_S),  # server 0 waits for a server that is gone
    ("stop_s", ("step_s", "disk_s", "last_words_s"), NOTICE_S),  # a run ends at a step, with a checkpoint
    ("stop_s", ("stop_after_s", "disk_s", "last_words_s"), NOTICE_S),  # server 0 waits for a server that is gone
    ("drain_s", ("disk_s", "last_words_s"), NOTICE_S),  # one rank still writes when the others have ended
]
patience = st.floats(1e-3, LONGEST_S)


@given(patience, patience, patience, patience)
def test_who_decides_is_less_patient_than_those_who_wait(
    step: float, join: float, reconnect: float, disk: float
) -> None:
    config = ExchangeConfig(
        step_timeout_s=step, join_timeout_s=join, reconnect_timeout_s=reconnect, checkpoint_timeout_s=disk
    )
    table = config.timeouts
    for waits, before, least_s in WAITS:
        decided_s = sum(getattr(table, name) for name in before)
        assert getattr(table, waits) > decided_s and getattr(table, waits) >= decided_s + least_s, (waits, before)


def test_a_patience_beyond_a_life_is_refused() -> None:
    with pytest.raises(ConfigError, match="join_timeout_s must be .* at most 1000000000.0, got 1e\\+18"):
        ExchangeConfig(join_timeout_s=1e18)


@pytest.mark.parametrize("name", ["step_timeout_s", "join_timeout_s", "reconnect_timeout_s", "checkpoint_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_patience_is_a_finite_time(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be greater than 0 and at most 1000000000.0, got {value}"):
        ExchangeConfig(**settings)


def test_what_ends_in_time_is_returned_or_raised():
    assert within(10, lambda: 3) == 3
    assert within(10, lambda: None) is None
    with pytest.raises(KeyError, match="lost"):
        within(10, lambda: {}["lost"])


def test_what_takes_too_long_is_left_behind():
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: release.wait(60))
    release.set()


def test_a_thread_that_waits_for_work_keeps_nothing_of_what_it_has_done():
    class Model:
        """A copy to be written."""

    thread, model = LeavableThread("test"), Model()
    kept = weakref.ref(model)
    thread.submit(lambda model=model: model).result(60)
    del model
    wait_until(lambda: kept() is None, "the copy to be let go of")
    thread.close(60)


def test_restarts_are_bounded_by_their_rate_not_by_their_total():
    now_s = [0.0]
    restarts = Restarts(2, 3600.0, clock=lambda: now_s[0])
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    assert str(restarts) == "2 of 2 within 1 h"
    now_s[0] = 3600.0
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    assert restarts.total == 4


def test_time_hardly_passes_while_the_process_is_stopped():
    reads = iter([100.0, 101.0, 102.9, 110.0, 111.0, 120.0])
    clock = AwakeClock(2.0, lambda: next(reads))
    assert [round(clock.now_s(), 6) for _ in range(2)] == [101.0, 102.9]
    assert clock.slept_s == 0.0 and clock.now_s() - clock.woke_s == 0.0
    assert round(clock.slept_s, 6) == 7.1
    assert round(clock.now_s(), 6) == 104.15
    assert round(clock.now_s() - clock.woke_s, 6) == 0.0 and clock.slept_s == 9.0


def test_time_passes_also_for_a_process_that_is_always_late():
    reads = iter(range(0, 3000, 3))
    clock = AwakeClock(2.0, lambda: float(next(reads)))
    assert [clock.now_s() for _ in range(100)][-1] == 25.0


def test_a_stop_that_is_shorter_than_a_patience_costs_none_of_it(monkeypatch: pytest.MonkeyPatch):
    now_s = [100.0]
    monkeypatch.setattr(AwakeClock.__init__, "__defaults__", (lambda: now_s[0],))
    clock = clock_of_a_loop(patience_s=60.0)
    began_s = clock.now_s()
    for gap_s in (*[0.5] * 30, 50.0):  # a step has been open for 15 s, then everybody is stopped
        now_s[0] += gap_s
        passed_s = clock.now_s() - began_s
    assert 15.0 <= passed_s < 16.0


def test_who_was_interrupted_dials_at_once_when_it_goes_on_however_late_that_is():
    redial = Redial(60.0, seed=1)
    assert redial.attempt(lambda: ("127.0.0.1", 1), 0.0, "worker 0 cannot reach server 0")
    redial.succeeded(60.0)
    redial.begin_anew()
    assert redial.attempt(lambda: ("127.0.0.1", 1), 400.0, "worker 0 cannot reach server 0")
