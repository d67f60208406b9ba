"""Who waits for whom, and who gives up first."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from param_servers.config import ExchangeConfig
from param_servers.errors import ConfigError
from param_servers.timeouts import RELATIONS, Relation, Timeouts

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
