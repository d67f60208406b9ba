"""The coordinator's decisions, told as tables of facts and what follows from them."""

from typing import Any

import pytest

from param_servers.config import ExchangeConfig
from param_servers.servers.coordinator import MOST_RESTORES, Coordinator
from param_servers.servers.step_commits import (
    Commit,
    Decision,
    Expel,
    Forsake,
    Give,
    Note,
    Restore,
    Stop,
    WriteCheckpoint,
)
from param_servers.wire.messages import RECIPIENT, Code, Row


def running(num_shards: int = 2, workers: int = 3, checkpoints: bool = False, **given: Any) -> Coordinator:
    """A coordinator at step 0 of term 1 whose workers have their parameters."""
    numbers = {"exchange": "servers", "num_gradients": 2, "num_workers": 8, "checkpoint_every_steps": 0} | given
    config = ExchangeConfig(step_timeout_s=10.0, reconnect_timeout_s=30.0, num_servers=num_shards, **numbers)
    coordinator = Coordinator(config, now_s=0.0, checkpoints=checkpoints)
    for shard in range(num_shards):
        coordinator.server_joined(shard, 0, 0.0)
    for shard in range(num_shards):
        coordinator.server_ready(shard, 1, 0.0)
    for worker in range(workers):
        coordinator.worker_joined(worker, 0, 0, 0.0)
        coordinator.pulled(worker, 0, -1, 0)
    assert coordinator.state == "running"
    return coordinator


def push(coordinator: Coordinator, worker: int, sequence: int, step: int, **given: Any) -> list[Decision]:
    """A gradient of 10 data points becomes complete on every shard (or on those given)."""
    row = Row(worker, given.get("incarnation", 0), sequence)
    decisions: list[Decision] = []
    for shard in given.get("shards", range(coordinator._num_shards)):
        decisions += coordinator.arrived(shard, row, step, 10, coordinator.term, given.get("now_s", 1.0))
    return decisions


def only(decisions: list[Decision], kind: type) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def members(commit: Commit) -> list[int]:
    return [row.worker for row in commit.members]


def test_servers_begin_together_when_all_are_there() -> None:
    coordinator = Coordinator(ExchangeConfig(exchange="servers", num_servers=2), 0.0, saved=(40, 400), term=3)
    assert only(coordinator.server_joined(0, 0, 0.0), Restore) == []
    assert only(coordinator.server_joined(1, 5, 0.0), Restore) == [Restore(term=6, step=40, data_points=400)]


@pytest.mark.parametrize(("join_s", "patience_s"), [(300.0, 300.0), (2.0, 20.0)])
def test_the_first_step_of_a_term_has_the_time_of_a_step_of_the_term_before_and_its_own(join_s, patience_s) -> None:
    coordinator = running(num_shards=1, join_timeout_s=join_s)
    coordinator.server_heard(0, patience_s)
    assert only(coordinator.tick(patience_s), Stop) == []
    assert only(coordinator.tick(patience_s + 1.0), Stop)


def test_the_first_g_complete_workers_are_the_set() -> None:
    coordinator = running()
    assert push(coordinator, 2, 1, 0) == []
    (commit,) = push(coordinator, 0, 1, 0)
    assert isinstance(commit, Commit) and members(commit) == [0, 2]
    assert (commit.step, commit.data_points_before, commit.data_points) == (0, 0, 20)


def test_a_worker_that_is_complete_on_one_shard_only_is_in_no_set() -> None:
    coordinator = running()
    push(coordinator, 0, 1, 0, shards=[0])
    push(coordinator, 1, 1, 0)
    (commit,) = push(coordinator, 2, 1, 0)
    assert isinstance(commit, Commit) and members(commit) == [1, 2]


def test_a_repeated_report_does_not_count_twice() -> None:
    coordinator = running()
    push(coordinator, 0, 1, 0)
    assert push(coordinator, 0, 1, 0) == []


def test_a_worker_that_gives_two_gradients_for_a_step_is_expelled_and_neither_counts() -> None:
    coordinator = running(num_shards=1)
    push(coordinator, 0, 1, 0)
    (expelled,) = push(coordinator, 0, 2, 0)  # the shard has replaced the first by it
    assert (expelled.worker, expelled.incarnation) == (0, 0)
    assert push(coordinator, 1, 1, 0) == []
    (commit,) = push(coordinator, 2, 1, 0)
    assert members(commit) == [1, 2]


def test_a_rejected_push_is_replaced_by_the_next_one() -> None:
    coordinator = running(num_shards=2)
    push(coordinator, 0, 1, 0, shards=[0])
    coordinator.arrived(1, Row(0, 0, 1, Code.NON_FINITE), 0, 10, 1, 1.0)
    push(coordinator, 0, 2, 0)
    (commit,) = push(coordinator, 1, 1, 0)
    assert isinstance(commit, Commit)
    assert [row.sequence for row in commit.members] == [2, 1]


@pytest.mark.parametrize("step", [0, 2])
def test_reports_of_another_step_than_the_open_one_never_count(step: int) -> None:
    coordinator = running(workers=4)
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    assert coordinator.step == 1
    assert push(coordinator, 2, 1, step) + push(coordinator, 3, 1, step) == []  # g = 2 of them, complete everywhere
    assert push(coordinator, 0, 2, 1) == []
    (commit,) = push(coordinator, 1, 2, 1)
    assert isinstance(commit, Commit) and members(commit) == [0, 1]


def test_an_asynchronous_report_of_a_step_to_come_does_not_count() -> None:
    coordinator = running(num_gradients=1, exchange="async")
    assert push(coordinator, 0, 1, 1) == []


def test_a_busy_worker_is_sent_two_versions_at_most() -> None:
    coordinator = running()
    recipients = []
    for step in range(3):
        push(coordinator, 0, step + 1, step)
        (commit,) = push(coordinator, 1, step + 1, step)
        assert isinstance(commit, Commit)
        recipients.append([row.worker for row in commit.rows if row.mark & RECIPIENT])
    assert recipients == [[0, 1, 2], [0, 1], [0, 1]]  # worker 2 holds version 0 and was sent version 1
    (give,) = coordinator.pulled(2, 0, 1, 1)
    assert give == Give(1, 3, (Row(2, 0, 0),))
    assert coordinator.pulled(2, 0, 1, 1) == []  # it is on its way


def test_an_older_incarnation_is_refused_and_forgotten() -> None:
    coordinator = running()
    push(coordinator, 0, 7, 0)
    decisions = coordinator.worker_joined(0, 1, 0, 1.0)
    assert only(decisions, Expel) == [Expel(0, 0, "incarnation 1 took its place")]
    assert push(coordinator, 1, 1, 0) == []  # worker 0's old gradient is gone
    assert push(coordinator, 0, 8, 0) == []  # and nothing comes from it any more
    (commit,) = push(coordinator, 0, 1, 0, incarnation=1)
    assert isinstance(commit, Commit) and members(commit) == [0, 1]


def test_a_complete_gradient_of_a_dead_worker_still_counts() -> None:
    coordinator = running()
    push(coordinator, 0, 1, 0)
    coordinator.steps.left(0, 0, "killed")
    (commit,) = push(coordinator, 1, 1, 0)
    assert isinstance(commit, Commit) and members(commit) == [0, 1]


def test_silent_workers_are_expelled_by_name_and_g_shrinks() -> None:
    coordinator = running(workers=2)
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    push(coordinator, 0, 2, 1, now_s=2.0)
    for shard in range(2):
        coordinator.server_heard(shard, 11.5)
    assert coordinator.tick(11.0) == []
    expel, note, commit = coordinator.tick(11.5)
    assert isinstance(expel, Expel) and expel.worker == 1
    assert isinstance(note, Note) and note.event == "shrunk" and "2 gradients" in note.message
    assert isinstance(commit, Commit) and members(commit) == [0]
    coordinator.worker_joined(1, 0, 1, 12.0)
    push(coordinator, 0, 3, 2)
    assert coordinator.steps.num_gradients == 1  # it has reached shard 0, perhaps no other: nobody waits for it
    coordinator.pulled(1, 0, 2, 1)
    push(coordinator, 0, 4, 3)
    assert coordinator.steps.num_gradients == 2  # it has reached all and counts again, from the next step on


def test_fewer_than_min_workers_end_the_run_with_a_checkpoint_and_are_named() -> None:
    coordinator = running(workers=2, num_workers=2, min_workers=2, checkpoints=True)
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    push(coordinator, 0, 2, 1)
    for shard in range(2):
        coordinator.server_heard(shard, 20.0)
    decisions = coordinator.tick(20.0)
    assert only(decisions, WriteCheckpoint) == [WriteCheckpoint(1, 20)]
    assert not only(decisions, Expel)  # the late one hears why the run ends
    assert coordinator.checkpointing.slice_written(0, 1) is False
    assert coordinator.checkpointing.slice_written(1, 1) is True
    (stop,) = only(coordinator.checkpoint_done(1, "", 9.0), Stop)
    assert stop.failed and "only 1 workers gave one, not worker 1 (min_workers 2)" in stop.reason


def test_a_worker_that_never_came_is_named() -> None:
    coordinator = running(workers=1, num_workers=2, min_workers=2)
    push(coordinator, 0, 1, 0)
    for shard in range(2):
        coordinator.server_heard(shard, 400.0)
    (stop,) = only(coordinator.tick(400.0), Stop)
    assert stop.failed and "only 1 workers gave one, not worker 1 (min_workers 2)" in stop.reason


def test_an_end_is_told_once() -> None:
    coordinator = running(workers=2)
    assert len(only(coordinator.stop("enough", 20.0), Stop)) == 1 and coordinator.state == "stopped"
    assert coordinator.server_left(1, 21.0) == []


def test_a_silent_server_is_not_blamed_on_the_workers() -> None:
    coordinator = running()
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    coordinator.server_heard(0, 11.5)
    decisions = coordinator.tick(11.5)
    assert [decision.shard for decision in only(decisions, Forsake)] == [1]
    assert only(decisions, Expel) == [] and coordinator.state == "gathering"


def test_a_server_that_returns_takes_everybody_back_to_the_checkpoint() -> None:
    coordinator = running(checkpoints=True, checkpoint_every_steps=2)
    for step in range(3):
        push(coordinator, 0, step + 1, step)
        decisions = push(coordinator, 1, step + 1, step)
        if only(decisions, WriteCheckpoint):
            coordinator.checkpointing.slice_written(0, 2), coordinator.checkpointing.slice_written(1, 2)
            coordinator.checkpoint_done(2, "", 9.0)
    assert coordinator.step == 3
    coordinator.server_left(1, 5.0)
    assert push(coordinator, 0, 4, 3) + push(coordinator, 1, 4, 3) == []
    restore, note = coordinator.server_joined(1, 1, 6.0)
    assert restore == Restore(term=2, step=2, data_points=40)
    assert isinstance(note, Note) and "1 committed steps are undone" in note.message
    coordinator.server_ready(0, 2, 6.0)
    (give,) = only(coordinator.server_ready(1, 2, 6.0), Give)
    assert (give.term, give.step, [row.worker for row in give.rows]) == (2, 2, [0, 1, 2])


def test_a_lost_server_that_does_not_return_ends_the_run() -> None:
    coordinator = running()
    coordinator.server_left(1, 5.0)
    coordinator.server_left(0, 30.0)  # another loss gives nobody more time than those who wait for server 1 have
    assert coordinator.tick(35.0) == []
    (stop,) = only(coordinator.tick(35.1), Stop)
    assert stop == Stop("server 1 did not come within 30 s", True)


@pytest.mark.parametrize(("staleness", "counts"), [(0, True), (2, True), (3, False)])
def test_asynchronous_gradients_count_up_to_the_bound(staleness: int, counts: bool) -> None:
    coordinator = running(workers=2, num_gradients=1, exchange="async", max_staleness=2)
    for step in range(staleness):
        (commit,) = push(coordinator, 0, step + 1, step)
        assert isinstance(commit, Commit) and commit.staleness == (0,)
    (answer,) = push(coordinator, 1, 1, 0)
    if counts:
        assert isinstance(answer, Commit) and answer.staleness == (staleness,)
        assert [row.worker for row in answer.rows if row.mark & RECIPIENT] == [1]
    else:
        assert answer == Give(1, 3, (Row(1, 0, 1, Code.STALE),))


def test_every_asynchronous_gradient_is_answered_however_many_are_pushed_on_one_version() -> None:
    coordinator = running(workers=1, num_gradients=1, exchange="async")
    for step in range(5):
        (commit,) = push(coordinator, 0, step + 1, 0)
        assert isinstance(commit, Commit) and [row.worker for row in commit.rows if row.mark & RECIPIENT] == [0]


@pytest.mark.parametrize(
    "asks_again_s", [1.0, 12.0], ids=["asks for parameters and gives nothing", "needs longer than a step may"]
)
def test_a_worker_that_is_always_late_costs_less_and_less(asks_again_s: float) -> None:
    coordinator = running(num_shards=1, workers=3, num_gradients=3)
    incarnation, commits, expelled, next_pull_s, pushed = 0, 0, 0, 0.0, -1
    for now_s in map(float, range(1, 2_401)):  # the others need a second for a step
        decisions = coordinator.tick(now_s)
        if pushed < coordinator.step:
            pushed = coordinator.step
            for worker in (0, 1):
                decisions += push(coordinator, worker, pushed + 1, pushed, now_s=now_s)
        if now_s >= next_pull_s:
            coordinator.pulled(2, incarnation, coordinator.step - 1, coordinator.term)
            next_pull_s = now_s + asks_again_s
        commits += len(only(decisions, Commit))
        for expel in only(decisions, Expel):
            assert expel.worker == 2
            expelled, incarnation, next_pull_s = expelled + 1, incarnation + 1, now_s + asks_again_s
            coordinator.worker_joined(2, incarnation, 0, now_s)
    assert 5 <= expelled <= 12 and commits > 1_950  # 300 s are the first join


def test_a_worker_that_was_in_a_step_again_counts_at_its_next_pull() -> None:
    coordinator, now_s = running(num_shards=1, workers=2), 1.0
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    for incarnation in range(1, 5):
        step, now_s = coordinator.step, now_s + 100.0
        push(coordinator, 0, step + 1, step, now_s=now_s)
        assert only(coordinator.tick(now_s + 11.0), Expel)
        coordinator.worker_joined(1, incarnation, 0, now_s + 12.0)
        coordinator.pulled(1, incarnation, -1, 0)
        push(coordinator, 0, step + 2, step + 1, now_s=now_s + 13.0)
        assert coordinator.steps.num_gradients == 2
        push(coordinator, 0, step + 3, step + 2, now_s=now_s + 14.0)
        push(coordinator, 1, 1, step + 2, incarnation=incarnation, now_s=now_s + 14.0)
        assert coordinator.step == step + 3


def test_a_worker_that_is_in_steps_again_counts_though_it_never_has_to_ask() -> None:
    coordinator, now_s = running(num_shards=1, workers=2), 1.0
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    for incarnation in (1, 2):
        step, now_s = coordinator.step, now_s + 100.0
        push(coordinator, 0, step + 1, step, now_s=now_s)
        assert only(coordinator.tick(now_s + 11.0), Expel)
        coordinator.worker_joined(1, incarnation, 0, now_s + 12.0)
        coordinator.pulled(1, incarnation, -1, 0)
        push(coordinator, 0, step + 2, step + 1, now_s=now_s + 13.0)
    assert coordinator.steps.num_gradients == 1  # late twice, asked once
    push(coordinator, 1, 1, coordinator.step, incarnation=2, now_s=now_s + 14.0)
    push(coordinator, 0, 9, coordinator.step, now_s=now_s + 14.0)
    assert coordinator.steps.num_gradients == 2


def test_servers_that_go_back_again_and_again_without_a_checkpoint_between_end_the_run() -> None:
    coordinator, now_s = running(workers=0, checkpoints=True, checkpoint_every_steps=1000), 1.0
    for _ in range(2 * MOST_RESTORES):  # the link between them breaks in every step
        now_s += 1.0
        coordinator.server_left(1, now_s)
        decisions = coordinator.server_joined(1, 0, now_s)
        if coordinator.state != "restoring":
            break
        for shard in range(2):
            coordinator.server_ready(shard, coordinator.term, now_s)
    (stop,) = only(decisions, Stop)
    assert stop.failed and f"went back to step 0 {MOST_RESTORES} times" in stop.reason
