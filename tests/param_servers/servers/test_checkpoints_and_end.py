"""The coordinator's checkpoints, and how it ends a run, told as tables of facts and what follows from them."""

from typing import Any

import pytest

from param_servers.config import ExchangeConfig
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.step_commits import Note, Restore, Stop, WriteCheckpoint
from tests.param_servers.servers.test_coordinator import only, push, running


def publishing(**given: Any) -> Coordinator:
    """Step 3, server 1 lost, and the checkpoint of step 2, of which all slices are written, not yet published."""
    coordinator = running(checkpoints=True, checkpoint_every_steps=2, **given)
    for step in range(3):
        push(coordinator, 0, step + 1, step), push(coordinator, 1, step + 1, step)
    assert coordinator.checkpointing.step == 2
    assert [coordinator.checkpointing.slice_written(shard, 2) for shard in (0, 1)] == [False, True]
    coordinator.server_left(1, 5.0)
    return coordinator


def test_a_checkpoint_that_all_servers_have_written_counts_although_one_is_lost_before_it_is_published() -> None:
    coordinator = publishing()
    coordinator.checkpoint_done(2, "", 9.0)
    assert coordinator.server_joined(1, 1, 6.0)[0] == Restore(term=2, step=2, data_points=40)


def test_a_server_that_returns_waits_for_the_checkpoint_that_is_being_published() -> None:
    coordinator = publishing()
    assert coordinator.server_joined(1, 1, 6.0) == [] and not coordinator.may_stop(6.0)
    assert only(coordinator.checkpoint_done(2, "", 100.0), Restore) == [Restore(term=2, step=2, data_points=40)]
    assert coordinator.may_stop(100.0)
    assert only(coordinator.tick(6.0 + coordinator._timeouts.disk_s + 1.0), Stop) == []  # loading has time of its own


def test_a_returned_server_goes_further_back_where_the_checkpoint_could_not_be_published() -> None:
    coordinator = publishing()
    coordinator.server_joined(1, 1, 6.0)
    decisions = coordinator.checkpoint_done(2, "no space left", 9.0)
    assert only(decisions, Restore) == [Restore(term=2, step=0, data_points=0)]


def test_a_disk_that_publishes_no_checkpoint_does_not_keep_a_returned_server_waiting_for_ever() -> None:
    coordinator = publishing(checkpoint_timeout_s=20.0)
    coordinator.server_joined(1, 1, 6.0)
    assert only(coordinator.tick(26.5), Stop) == []  # the run's end waits for it, too
    (stop,) = only(coordinator.tick(47.0), Stop)
    assert stop.failed and stop.reason.startswith("server 0 did not publish the checkpoint of step 2 within 20 s; ")


def test_a_run_that_is_stopped_with_a_server_that_restored_nothing_writes_no_checkpoint_with_it() -> None:
    coordinator = publishing()
    coordinator.server_joined(1, 1, 6.0)
    coordinator.stop("enough", 6.0)
    decisions = coordinator.checkpoint_done(2, "", 9.0)
    (stop,) = only(decisions, Stop)
    assert stop.failed and "server 1 is gone" in stop.reason and only(decisions, WriteCheckpoint) == []


def test_a_disk_that_does_not_get_the_servers_to_the_checkpoint_in_time_ends_the_run() -> None:
    coordinator = Coordinator(ExchangeConfig(exchange="servers", num_servers=2, checkpoint_timeout_s=20.0), 0.0)
    coordinator.server_joined(0, 0, 0.0)
    coordinator.server_joined(1, 0, 1.0)
    coordinator.server_ready(1, 1, 2.0)
    assert coordinator.tick(21.0) == []
    (stop,) = only(coordinator.tick(21.5), Stop)
    assert stop.failed and "server 0 did not load step 0 within 20 s" in stop.reason


def test_a_disk_that_does_not_set_later_checkpoints_aside_is_server_0s_not_that_of_those_who_were_not_asked() -> None:
    coordinator = Coordinator(ExchangeConfig(exchange="servers", num_servers=2, checkpoint_timeout_s=20.0), 0.0)
    coordinator.server_joined(0, 0, 0.0)
    coordinator.server_joined(1, 0, 1.0)
    (stop,) = only(coordinator.tick(21.5), Stop)
    assert stop.reason.startswith("server 0 did not load step 0 within 20 s")


def test_a_failed_checkpoint_does_not_stop_training() -> None:
    coordinator = running(checkpoints=True, checkpoint_every_steps=1)
    push(coordinator, 0, 1, 0)
    assert only(push(coordinator, 1, 1, 0), WriteCheckpoint) == [WriteCheckpoint(1, 20)]
    (note,) = coordinator.checkpoint_done(1, "server 0: no space left on device", 9.0)
    assert isinstance(note, Note) and "no space left" in note.message and "training goes on" in note.message
    push(coordinator, 0, 2, 1)
    assert only(push(coordinator, 1, 2, 1), WriteCheckpoint) == [WriteCheckpoint(2, 40)]


def test_asked_to_stop_it_writes_what_is_not_saved_yet_and_ends() -> None:
    coordinator = running(checkpoints=True)
    assert only(coordinator.stop("score reached", 2.0), Stop) == [Stop("score reached", False)]  # nothing to save
    coordinator = running(checkpoints=False)
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    assert only(coordinator.stop("enough", 2.0), Stop) == [Stop("enough", False)]


def test_a_checkpoint_that_somebody_does_not_write_is_told_once_by_name() -> None:
    coordinator = running(num_shards=2, workers=1, num_gradients=1, checkpoints=True, checkpoint_every_steps=1)
    push(coordinator, 0, 1, 0, now_s=1.0)
    coordinator.checkpointing.slice_written(0, 1)
    told = []
    for now_s in range(2, 400):
        for shard in range(2):
            coordinator.server_heard(shard, float(now_s))
        push(coordinator, 0, now_s, now_s - 1, now_s=float(now_s))
        told += [(now_s, note.message) for note in only(coordinator.tick(float(now_s)), Note)]
    ((late_s, line),) = told
    disk_s = coordinator._timeouts.disk_s
    assert line == f"server 1 did not write the checkpoint of step 1 within {disk_s:g} s; none follows before they have"
    assert late_s == disk_s + 1


@pytest.mark.parametrize("how", ["refused", "too slow", "a server died", "a server was already gone"])
def test_a_last_checkpoint_that_is_not_written_is_no_success_and_its_steps_are_named(how: str) -> None:
    coordinator = running(num_shards=2, workers=1, num_gradients=1, checkpoints=True)
    push(coordinator, 0, 1, 0)
    if how == "a server was already gone":
        coordinator.server_left(1, 2.0)
    ended = coordinator.stop("enough", 2.0)
    if how == "refused":
        ended = coordinator.checkpoint_done(1, "server 0: read-only file system", 9.0)
    elif how == "too slow":
        ended = coordinator.tick(1000.0)
    elif how == "a server died":
        ended = coordinator.server_left(1, 3.0)
    (stop,) = only(ended, Stop)
    assert stop.failed
    assert stop.reason.startswith("enough; the last checkpoint could not be written (")
    assert stop.reason.endswith("): all steps since 0 are lost")


def test_a_server_that_is_lost_after_it_wrote_its_part_of_the_last_checkpoint_costs_nothing() -> None:
    coordinator = running(num_shards=2, workers=1, num_gradients=1, checkpoints=True)
    push(coordinator, 0, 1, 0)
    coordinator.stop("enough", 2.0)
    coordinator.checkpointing.slice_written(0, 1)
    coordinator.checkpointing.slice_written(1, 1)
    assert not only(coordinator.server_left(1, 3.0), Stop)
    assert only(coordinator.checkpoint_done(1, "", 9.0), Stop) == [Stop("enough", failed=False)]


def test_a_last_checkpoint_after_one_in_the_making_is_not_waited_for_without_its_servers() -> None:
    coordinator = running(num_shards=2, workers=1, num_gradients=1, checkpoints=True, checkpoint_every_steps=1)
    push(coordinator, 0, 1, 0)
    push(coordinator, 0, 2, 1)
    coordinator.stop("enough", 2.0)
    coordinator.checkpointing.slice_written(0, 1)
    coordinator.checkpointing.slice_written(1, 1)
    assert not only(coordinator.server_left(1, 3.0), Stop)
    assert coordinator.server_joined(1, 0, 3.5) == []  # it has restored nothing
    (stop,) = only(coordinator.checkpoint_done(1, "", 9.0), Stop)
    lost = "the last checkpoint could not be written (server 1 is gone): all steps since 1 are lost"
    assert stop == Stop(f"enough; {lost}", failed=True)


def test_a_request_to_stop_waits_for_a_lost_server_where_steps_would_be_lost_but_not_for_long() -> None:
    coordinator = Coordinator(ExchangeConfig(exchange="servers", num_servers=2), 0.0, checkpoints=True)
    assert coordinator.may_stop(0.0)  # the servers have not come, and nothing can be lost
    coordinator = running(num_shards=2, workers=1, num_gradients=1, checkpoints=True)
    assert coordinator.may_stop(1.0)
    push(coordinator, 0, 1, 0)
    coordinator.server_left(1, 2.0)
    after_s = coordinator._timeouts.stop_after_s
    assert not coordinator.may_stop(2.0 + after_s) and coordinator.may_stop(2.1 + after_s)
    coordinator.server_joined(1, 0, 5.0)
    assert coordinator.state == "restoring" and coordinator.may_stop(5.0)  # at the step of the checkpoint
    coordinator.stop("enough", 5.0)
    assert not coordinator.may_stop(5.0)


def test_a_checkpoint_that_failed_is_not_tried_again_before_the_next_one_is_due() -> None:
    coordinator = running(num_shards=1, workers=1, num_gradients=1, checkpoints=True, checkpoint_every_steps=10)
    begun = []
    for step in range(35):
        for checkpoint in only(push(coordinator, 0, step + 1, step), WriteCheckpoint):
            begun.append(checkpoint.step)
            coordinator.checkpoint_done(checkpoint.step, "no space left on device", 9.0)
    assert begun == [10, 20, 30]


def test_after_a_roll_back_a_checkpoint_that_was_tried_is_due_again() -> None:
    coordinator = running(num_shards=1, workers=1, num_gradients=1, checkpoints=True, checkpoint_every_steps=2)
    push(coordinator, 0, 1, 0)
    assert only(push(coordinator, 0, 2, 1), WriteCheckpoint) == [WriteCheckpoint(2, 20)]
    coordinator.server_left(0, 1.0)
    coordinator.server_joined(0, 0, 1.0)
    coordinator.server_ready(0, coordinator.term, 1.0)
    assert coordinator.step == 0
    push(coordinator, 0, 3, 0)
    assert only(push(coordinator, 0, 4, 1), WriteCheckpoint) == [WriteCheckpoint(2, 20)]


def test_a_worker_that_has_seen_a_newer_term_does_not_take_the_last_checkpoint_from_a_run_that_is_stopping() -> None:
    coordinator = running(checkpoints=True)
    push(coordinator, 0, 1, 0), push(coordinator, 1, 1, 0)
    assert only(coordinator.stop("enough", 2.0), WriteCheckpoint) == [WriteCheckpoint(1, 20)]
    coordinator.worker_joined(2, 1, 7, 3.0)
    assert coordinator.term == 1  # in which the servers are writing it
