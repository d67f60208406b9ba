"""The majority's decisions, told as facts and what follows from them."""

from typing import Any

from param_servers.config import ExchangeConfig
from param_servers.majority.coordinator import (
    MOST_BROKEN,
    FormGroup,
    LeaveGroup,
    MajorityCoordinator,
    MajorityDecision,
)
from param_servers.servers.step_commits import Commit, Expel, Note, Stop
from param_servers.wire.messages import MEMBER

STEP_S, JOIN_S = 10.0, 100.0
REGROUP_S = ExchangeConfig(step_timeout_s=STEP_S).timeouts.group_s


def gathering(ranks: int = 3, connected: int | None = None, **settings: Any) -> MajorityCoordinator:
    """A coordinator to which `connected` ranks (None: all) have come; none has said how far it is."""
    numbers: dict[str, Any] = {"num_gradients": min(2, ranks), "step_timeout_s": STEP_S, "join_timeout_s": JOIN_S}
    config = ExchangeConfig(exchange="majority", num_workers=ranks, **(numbers | settings))
    coordinator = MajorityCoordinator(config, "layout", now_s=0.0)
    for rank in range(ranks if connected is None else connected):
        coordinator.joined(rank, 0)
    return coordinator


def form(coordinator: MajorityCoordinator, *ranks: int, step: int = 0, now_s: float = 1.0) -> list[MajorityDecision]:
    """These ranks say that they are at `step`; returns the last decisions."""
    decisions: list[MajorityDecision] = []
    for rank in ranks:
        decisions = coordinator.stands(rank, coordinator.generation, step, 10 * step, now_s)
    return decisions


def running(ranks: int = 3, step: int = 0, **settings: Any) -> MajorityCoordinator:
    """A coordinator whose ranks form a group at `step`."""
    coordinator = gathering(ranks, **settings)
    form(coordinator, *range(ranks), step=step)
    assert coordinator.phase == "running"
    return coordinator


def offer(coordinator: MajorityCoordinator, rank: int, step: int, now_s: float = 1.0) -> list[MajorityDecision]:
    """A gradient of 5 data points is ready; a rank's pushes are numbered by their steps here."""
    return coordinator.gradient(rank, coordinator.generation, step + 1, step, 5, now_s)


def only(decisions: list[MajorityDecision], kind: type) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def notes(decisions: list[MajorityDecision]) -> list[str]:
    return [note.event for note in only(decisions, Note)]


def members(decisions: list[MajorityDecision]) -> list[int]:
    (commit,) = only(decisions, Commit)
    return [row.worker for row in commit.rows if row.mark & MEMBER]


def test_the_first_group_waits_for_all_ranks_and_takes_over_the_state_of_the_furthest() -> None:
    coordinator = gathering()
    assert coordinator.stands(0, 0, 7, 70, 1.0) == coordinator.stands(1, 0, 9, 90, 1.0) == []
    running, group = coordinator.stands(2, 0, 9, 90, 1.0)
    assert running == Note("running", "3 ranks go on from step 9") and group == FormGroup(1, (0, 1, 2), 1, 9, 90)
    assert coordinator.progress == (9, 90)


def test_the_first_g_ranks_that_are_ready_make_the_step() -> None:
    coordinator = running()
    assert offer(coordinator, 2, 0) == []
    assert members(offer(coordinator, 0, 0)) == [0, 2]
    assert offer(coordinator, 1, 0) == []  # late
    assert coordinator.progress == (1, 10)


def test_what_is_said_of_an_earlier_group_means_nothing() -> None:
    coordinator = running()
    coordinator.stands(1, 1, 0, 0, 2.0)
    assert coordinator.phase == "gathering"
    form(coordinator, 0, 1, 2, now_s=3.0)
    assert (coordinator.phase, coordinator.generation) == ("running", 2)
    assert coordinator.stands(0, 1, 0, 0, 3.0) == []
    assert coordinator.gradient(0, 1, 1, 0, 5, 3.0) == coordinator.gradient(1, 1, 1, 0, 5, 3.0) == []


def test_a_lost_rank_makes_all_others_say_how_far_they_are() -> None:
    coordinator = running()
    decisions = coordinator.left(1, "killed", 2.0)
    assert notes(decisions) == ["left", "regrouping"] and only(decisions, LeaveGroup) == [LeaveGroup()]
    assert coordinator.stands(0, 1, 4, 40, 2.0) == []
    assert only(coordinator.stands(2, 1, 5, 50, 2.0), FormGroup) == [FormGroup(2, (0, 2), 2, 5, 50)]


def test_with_a_rank_that_comes_late_the_others_form_a_new_group() -> None:
    coordinator = gathering(connected=2)
    coordinator.stands(0, 0, 0, 0, 1.0), coordinator.stands(1, 0, 0, 0, 1.0)
    assert only(coordinator.tick(JOIN_S + 1), FormGroup) == [FormGroup(1, (0, 1), 0, 0, 0)]
    assert notes(coordinator.joined(2, 0)) == ["joined"] and coordinator.phase == "running"
    decisions = coordinator.stands(2, 0, 0, 0, JOIN_S + 2)
    assert "rank 2 came" in only(decisions, Note)[0].message and only(decisions, LeaveGroup)
    coordinator.stands(0, 1, 3, 30, JOIN_S + 2)
    assert coordinator.stands(1, 1, 3, 30, JOIN_S + 2)[-1] == FormGroup(2, (0, 1, 2), 0, 3, 30)


def test_ranks_that_do_not_say_how_far_they_are_are_expelled() -> None:
    coordinator = running()
    coordinator.left(0, "killed", 2.0)
    coordinator.stands(1, 1, 1, 10, 2.0)
    assert coordinator.tick(2.0 + REGROUP_S) == []
    decisions = coordinator.tick(2.1 + REGROUP_S)
    assert only(decisions, Expel) == [Expel(2, 0, "it did not answer in time")]
    assert only(decisions, FormGroup) == [FormGroup(2, (1,), 1, 1, 10)] and "shrunk" in notes(decisions)


def test_a_rank_that_does_not_enter_the_group_is_found_by_the_others_and_expelled() -> None:
    coordinator = running()
    assert only(coordinator.stands(0, 1, 0, 0, 2.0), LeaveGroup) and coordinator.stands(2, 1, 0, 0, 2.0) == []
    decisions = coordinator.tick(2.1 + REGROUP_S)
    assert [expel.worker for expel in only(decisions, Expel)] == [1]
    assert only(decisions, FormGroup) == [FormGroup(2, (0, 2), 0, 0, 0)]


def test_what_a_rank_says_that_is_gone_means_nothing() -> None:
    coordinator = running()
    coordinator.left(1, "killed", 2.0)
    assert coordinator.stands(1, 1, 0, 0, 2.0) == offer(coordinator, 1, 0) == []
    form(coordinator, 0, 2, now_s=3.0)
    assert offer(coordinator, 1, 0) == []


def test_ranks_whose_gradients_do_not_come_are_expelled_and_the_others_gather_again() -> None:
    coordinator = running()
    offer(coordinator, 0, 0), offer(coordinator, 1, 0)
    offer(coordinator, 2, 1, now_s=2.0)
    decisions = coordinator.tick(1.1 + REGROUP_S)
    assert [expel.worker for expel in only(decisions, Expel)] == [0, 1] and only(decisions, LeaveGroup)
    assert (coordinator.phase, coordinator.progress) == ("gathering", None)


def test_with_too_few_ranks_the_run_ends() -> None:
    coordinator = running(2, min_workers=2)
    coordinator.left(1, "killed", 2.0)
    (stop,) = only(coordinator.stands(0, 1, 1, 10, 2.0), Stop)
    assert stop.failed and "1 ranks are left for 2 gradients" in stop.reason and coordinator.phase == "stopped"


def test_groups_that_break_again_and_again_without_a_step_end_the_run() -> None:
    coordinator = running(1)
    decisions: list[MajorityDecision] = []
    for _ in range(MOST_BROKEN):
        assert only(decisions, Stop) == []
        decisions = coordinator.stands(0, coordinator.generation, 0, 0, 1.0)
    (stop,) = only(decisions, Stop)
    assert stop.failed and f"{MOST_BROKEN} groups broke" in stop.reason


def test_ranks_that_come_back_one_by_one_before_the_first_gradient_break_no_group() -> None:
    ranks = 2 * MOST_BROKEN
    coordinator = running(ranks, num_gradients=ranks)
    for rank in range(2, ranks):
        coordinator.left(rank, "its node is gone", 1.0)
    form(coordinator, 0, 1)
    for rank in range(2, ranks):
        coordinator.joined(rank, 1)
        assert only(form(coordinator, rank, *range(rank)), FormGroup)
    assert coordinator.phase == "running" and coordinator.members == {*range(ranks)}


def test_a_rank_that_comes_and_is_lost_again_and_again_ends_a_run_that_makes_no_step() -> None:
    coordinator = running(3)
    for life in range(1, MOST_BROKEN + 1):
        coordinator.left(2, "killed", 1.0)
        assert only(form(coordinator, 0, 1), Stop) == [] or life == MOST_BROKEN
        coordinator.joined(2, life)
        form(coordinator, 2, 0, 1)
    assert coordinator.phase == "stopped"

    coordinator = running(3)
    for life in range(1, MOST_BROKEN + 1):  # it is lost before the group is there
        coordinator.joined(2, life)
        form(coordinator, 2, 0)
        coordinator.left(2, "killed", 1.0)
        form(coordinator, 1)
    assert coordinator.phase == "stopped"


def test_a_committed_step_proves_that_groups_hold() -> None:
    coordinator = running(1)
    for step in range(2 * MOST_BROKEN):
        assert offer(coordinator, 0, step)
        form(coordinator, 0, step=step + 1)
    assert coordinator.phase == "running"


def test_asked_to_stop_it_stops_once() -> None:
    coordinator = running()
    assert only(coordinator.stop("enough", failed=False), Stop) == [Stop("enough", False)]
    assert coordinator.stop("again", failed=True) == coordinator.tick(1000.0) == []


def test_what_happens_after_the_end_does_not_begin_the_run_anew() -> None:
    coordinator = running()
    coordinator.stop("enough", failed=False)
    assert only(coordinator.left(1, "ended", 2.0), LeaveGroup) == []
    assert coordinator.stands(2, 1, 5, 50, 2.0) == []
    assert coordinator.phase == "stopped"


def test_a_rank_that_is_back_before_the_others_have_regrouped_is_in_the_next_group() -> None:
    coordinator = running()
    coordinator.left(2, "killed", 2.0)
    coordinator.stands(0, 1, 4, 40, 2.0)  # rank 1 is slow to answer
    coordinator.joined(2, 1)
    assert coordinator.stands(2, 0, 0, 0, 2.5) == []
    assert coordinator.stands(1, 1, 4, 40, 3.0)[-1] == FormGroup(2, (0, 1, 2), 0, 4, 40)
