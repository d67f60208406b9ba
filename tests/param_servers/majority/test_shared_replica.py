"""What a majority rank's main thread hears of what its comm thread does; one thread plays both here."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import PeerLost, RunStopped
from param_servers.exchange import Receipt
from param_servers.layout import FlatLayout
from param_servers.majority.shared_replica import LOOKS, SharedReplica
from param_servers.replica import Replica
from param_servers.wire.messages import MEMBER, Row
from tests.waiting import wait_until

LAYOUT = FlatLayout.of({"weight": (3,)})
RANK, OTHER = 1, Row(0, 0, 1, MEMBER)


def replica_at(step):
    replica = Replica(LAYOUT, torch.zeros(3), OptimizerConfig(optimizer="sgd", learning_rate="1"), ExchangeConfig())
    replica.step = step
    return replica


@pytest.fixture
def shared():
    """Rank 1 at step 0, in a group."""
    shared = SharedReplica(RANK, 0, replica_at(0), patience_s=0.05)
    shared.go_on_from(None)
    return shared


def sum_step(shared, step, *members):
    """The comm thread takes `step` with these members; returns what this rank added to the sum."""
    out = torch.full((3,), 9.0)
    shared.contribute(step, members, out)
    shared.commit(out, 10 * (step + 1))
    return out.tolist()


def own(sequence):
    return Row(RANK, 0, sequence, MEMBER)


def test_a_member_adds_its_gradient_and_is_accepted(shared):
    assert shared.offer(torch.ones(3), 0, 5) is None
    assert sum_step(shared, 0, OTHER, own(1)) == [1, 1, 1]
    assert shared.answer(0) == Receipt(True, 1)


def test_a_gradient_of_a_graph_is_not_kept_with_it(shared):
    shared.offer(torch.ones(3, requires_grad=True) * 2, 0, 5)
    assert sum_step(shared, 0, OTHER, own(1)) == [2, 2, 2]
    assert not shared._gradient.requires_grad


def test_who_is_no_member_adds_zeros_and_is_stale(shared):
    shared.offer(torch.ones(3), 0, 5)
    assert sum_step(shared, 0, OTHER) == [0, 0, 0]
    assert shared.answer(0) == Receipt(False, 1, "stale")


def test_a_answer_stays_what_it_was_when_the_others_go_on_before_it_is_read(shared):
    shared.offer(torch.ones(3), 0, 5)
    sum_step(shared, 0, OTHER, own(1))
    sum_step(shared, 1, OTHER)
    assert shared.answer(0) == Receipt(True, 2)


def test_a_gradient_whose_sum_broke_waits_on_and_counts_where_another_rank_took_the_step(shared):
    shared.offer(torch.ones(3), 0, 5)
    shared.contribute(0, [OTHER, own(1)], torch.zeros(3))
    assert shared.waiting is not None
    furthest = replica_at(1)
    shared.go_on_from((furthest.counters(), furthest.packed()))
    assert shared.waiting is None and shared.answer(0) == Receipt(True, 1)


def test_a_gradient_whose_sum_broke_is_stale_where_the_step_was_taken_without_it(shared):
    shared.offer(torch.ones(3), 0, 5)
    shared.contribute(0, [OTHER, own(1)], torch.zeros(3))
    shared.go_on_from(None)
    sum_step(shared, 0, OTHER)
    assert shared.answer(0) == Receipt(False, 1, "stale")


def test_a_gradient_of_another_step_or_not_finite_waits_for_nothing(shared):
    assert shared.offer(torch.ones(3), 1, 5) == Receipt(False, 0, "stale")
    assert shared.offer(torch.full((3,), float("nan")), 0, 5) == Receipt(False, 0, "non-finite")
    assert shared.waiting is None


def test_a_push_has_its_number_whether_it_may_wait_or_not(shared):
    shared.offer(torch.ones(3), 1, 5)
    shared.offer(torch.ones(3), 0, 5)
    assert shared.waiting.row == Row(RANK, 0, 2)


def test_nobody_waits_for_longer_than_stated_and_the_end_ends_all_waits(shared):
    with pytest.raises(PeerLost, match=r"rank 1 waited 0.05 s in vain for the ranks to form a group"):
        SharedReplica(RANK, 0, replica_at(0), patience_s=0.05).pull()
    shared.offer(torch.ones(3), 0, 5)
    shared.end(RunStopped("enough"))
    shared.end(PeerLost("later"))
    with pytest.raises(RunStopped, match="enough"):
        shared.answer(0)
    with pytest.raises(RunStopped, match="enough"):
        shared.offer(torch.ones(3), 0, 5)


def test_while_the_comm_thread_lives_it_is_the_chief_who_decides_how_long_a_group_takes(monkeypatch):
    shared = SharedReplica(RANK, 0, replica_at(0), patience_s=0.5)

    def look(true, timeout_s):
        shared.turns += 1
        if shared.turns == 3 * LOOKS:
            shared.go_on_from(None)
        return true()

    monkeypatch.setattr(shared._changed, "wait_for", look)
    assert shared.pull().step == 0


@pytest.fixture
def main_thread():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def pulling_while_a_step_is_summed(main_thread):
    shared = SharedReplica(RANK, 0, replica_at(0), patience_s=400)  # so that it does not look by itself
    shared.go_on_from(None)
    shared.contribute(0, [OTHER], torch.zeros(3))
    pulled = main_thread.submit(shared.pull)
    wait_until(lambda: shared._changed._waiters, "the main thread to wait")
    return shared, pulled


def test_who_pulls_while_a_step_is_summed_gets_the_parameters_after_it(main_thread):
    shared, pulled = pulling_while_a_step_is_summed(main_thread)
    shared.commit(torch.zeros(3), 10)
    assert pulled.result(timeout=60).step == 1


def test_who_pulls_while_a_sum_breaks_gets_the_parameters_as_they_are(main_thread):
    shared, pulled = pulling_while_a_step_is_summed(main_thread)
    shared.give_up_sum()
    assert pulled.result(timeout=60).step == 0


def test_a_sum_that_does_not_end_is_told_to_who_pulls(shared):
    shared.contribute(0, [OTHER], torch.zeros(3))
    with pytest.raises(PeerLost, match=r"rank 1 waited 0.05 s in vain for the sum of step 0"):
        shared.pull()
