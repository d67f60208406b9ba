"""How a majority's run ends, for whatever reason, with what has been learned."""

import pytest
import torch

from param_servers.checkpoint.files import find_newest
from param_servers.errors import LastStepsLost, PeerLost, RunBroken, RunStopped
from tests.param_servers.allreduce.test_allreduce import reference


def test_a_rank_that_waits_for_rank_0_can_be_closed(start):
    run = start(2).start(1)
    waiting = run.ranks.pop(1)
    waiting.close()
    assert not waiting._thread.is_alive()


def test_who_waits_for_ranks_that_do_not_come_hears_a_request_to_stop(start):
    run = start(2, join_timeout_s=300).start(0, should_stop=lambda *counts: "SIGTERM")
    with pytest.raises(RunStopped, match="SIGTERM"):
        run.ranks[0].pull()


def test_rank_0_left_alone_that_fails_by_itself_leaves_a_checkpoint(start, tmp_path):
    run = start(2).start(0, 1, checkpoint_dir=tmp_path)
    run.together([0, 1])
    run.die(1)
    run.together([0], steps=2)
    run.newest(0, 3)
    run.ranks.pop(0).close()  # its environment has failed, say
    assert (tmp_path / "step-3").is_dir()


def test_rank_0_ends_the_run_for_all_and_it_resumes_from_its_checkpoint(start, tmp_path):
    def stop(step, data_points):
        return "3 steps" if step >= 3 else None

    run = start(2).start(0, 1, checkpoint_dir=tmp_path, should_stop=stop)
    for outcome in run.together([0, 1], steps=10).values():
        assert isinstance(outcome, RunStopped) and outcome.reason == "3 steps"
    run.close()
    run.ranks.clear()
    run.board.addresses.clear()
    run.start(0, 1, checkpoint_dir=tmp_path)
    assert run.ranks[1].pull().step == 3
    run.together([0, 1], steps=2)
    assert torch.equal(run.newest(1, 5).parameters, reference([[0, 1]] * 5))


def test_an_end_whose_last_sum_broke_is_not_told_as_if_its_step_were_saved(start, tmp_path):
    def stop(step, data_points):
        return "3 steps" if step >= 3 else None

    def broken(buffer):
        raise PeerLost("rank 1 is gone")

    run = start(2).start(0, 1, checkpoint_dir=tmp_path, should_stop=stop)
    run.together([0, 1], steps=2)
    for rank in (0, 1):
        run.newest(rank, 2)
        run.ranks[rank]._group.all_reduce_sum_ = broken
    outcome = run.together([0, 1])[0]
    assert isinstance(outcome, LastStepsLost)
    assert str(outcome) == "3 steps; step 3 was decided, but its sum broke: the run ends at 2"
    assert find_newest(tmp_path).name == "step-2"


def test_whatever_ends_a_ranks_communication_thread_is_told_by_its_main_thread(start):
    def resolve(rank):
        return {}["address of rank 0"]

    run = start(2)
    run.board.resolve = resolve
    with pytest.raises(RunBroken, match="rank 1 cannot go on: KeyError: 'address of rank 0'"):
        run.start(1).ranks[1].pull()


def test_a_last_checkpoint_that_cannot_be_written_hides_from_nobody_that_the_run_ended(start, tmp_path):
    def stop(step, data_points):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        return "enough" if step else None

    def finish():
        raise LookupError("no such disk")

    run = start(2).start(0, 1, should_stop=stop, checkpoint_dir=tmp_path / "checkpoints")
    run.ranks[0].replica.finish = finish
    outcomes = run.together([0, 1], steps=2)
    assert isinstance(outcomes[1], RunStopped) and outcomes[1].reason == "enough"
    assert str(outcomes[0]) == "enough; the last checkpoint was not written: LookupError: no such disk"


def test_a_farewell_checkpoint_of_rank_0_that_cannot_be_written_is_told(start):
    run = start(2).start(0)
    run.ranks[0].replica.finish = lambda: "the last checkpoint was not written: no such disk"
    run.ranks.pop(0).close()
    (told,) = [event["message"] for event in run.events if event["event"] == "checkpoint_failed"]
    assert told == "rank 0 leaves; the last checkpoint was not written: no such disk"


def test_whatever_ends_the_chief_is_told_by_all_ranks(start):
    def stop(step, data_points):
        return "enough" if step / 0 else None

    run = start(2).start(0, 1, should_stop=stop)
    for error in run.together([0, 1]).values():
        assert isinstance(error, RunBroken)
        assert str(error) == "rank 0 cannot decide any more: ZeroDivisionError: division by zero"


def test_an_end_for_a_reason_with_a_file_s_name_that_is_no_text_is_told_to_all_ranks(start):
    run = start(2).start(0, 1, should_stop=lambda step, data_points: "caf\udce9: full" if step else None)
    for outcome in run.together([0, 1], steps=2).values():
        assert isinstance(outcome, RunStopped) and outcome.reason == "caf\\udce9: full"


def test_a_chief_that_cannot_be_asked_any_more_whether_to_stop_ends_the_run_for_that_reason(start):
    def stop(step, data_points):
        raise RunBroken("stop.json: permission denied")

    run = start(2).start(0, 1, should_stop=stop)
    for error in run.together([0, 1]).values():
        assert isinstance(error, RunBroken) and str(error) == "stop.json: permission denied"
