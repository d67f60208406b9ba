"""Who waits for whom, and who gives up first."""

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError
from param_servers.timeouts import RELATIONS, AwakeClock, Relation, Restarts, Timeouts, within

USERS: list[dict[str, float]] = [
    {},
    {"step_timeout_s": 0.05, "join_timeout_s": 0.05, "reconnect_timeout_s": 0.05, "checkpoint_timeout_s": 0.05},
    {"step_timeout_s": 1, "join_timeout_s": 3600},
    {"step_timeout_s": 3600, "join_timeout_s": 1},
    {"reconnect_timeout_s": 86_400, "checkpoint_timeout_s": 1},
    {"reconnect_timeout_s": 1, "checkpoint_timeout_s": 86_400},
]


@pytest.mark.parametrize("given", USERS)
def test_who_decides_is_less_patient_than_those_who_wait(given: dict[str, float]) -> None:
    table = ExchangeConfig(**given).timeouts  # type: ignore[arg-type]
    for waits, before, _, why in RELATIONS:
        assert getattr(table, waits) > sum(getattr(table, name) for name in before), why


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: f"{relation.waits}>{'+'.join(relation.before)}")
def test_a_wait_that_ends_with_the_decision_or_before_it_is_refused(relation: Relation) -> None:
    table: Any = SimpleNamespace(**dataclasses.asdict(Timeouts.of()))
    relation.check(table)
    decided_s = sum(getattr(table, name) for name in relation.before)
    setattr(table, relation.waits, decided_s)
    with pytest.raises(ConfigError, match=rf"{relation.waits} {decided_s:g} must be more than .* = {decided_s:g} s"):
        relation.check(table)


def test_an_error_prints_the_arithmetic_and_says_why() -> None:
    table = Timeouts.of(step_timeout_s=10, join_timeout_s=30, reconnect_timeout_s=20, checkpoint_timeout_s=5)
    line = (
        "answer_s 30 must be more than first_step_s 30 + server_return_s 20 + load_s 5 = 55 s by 2 s: "
        "a server is lost in the first step"
    )
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(table, first_server_s=1.0, answer_s=30.0)
    assert str(error.value) == line


def test_a_configuration_whose_numbers_hide_each_other_is_refused() -> None:
    """Beyond 2^53 s, adding a margin changes nothing."""
    with pytest.raises(ConfigError, match="must be more than"):
        ExchangeConfig(join_timeout_s=1e18)


@pytest.mark.parametrize("name", ["step_timeout_s", "join_timeout_s", "reconnect_timeout_s", "checkpoint_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_patience_is_a_finite_time(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be greater than 0 and finite"):
        ExchangeConfig(**settings)


def test_every_line_of_the_table_that_is_waited_for_stands_in_a_relation() -> None:
    """Nobody adds a wait without saying who decides before it ends."""
    named = {name for relation in RELATIONS for name in (relation.waits, *relation.before)}
    alone = {field.name for field in dataclasses.fields(Timeouts)} - named
    assert alone == {"roll_call_s", "chief_leave_s"}


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
