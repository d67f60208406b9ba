"""What a worker knows of versions: when its parameters are complete, that none are half-arrived, what is stale."""

import pytest
import torch

from param_servers.layout import FlatLayout, plan_shards
from param_servers.servers.client_state import ClientState
from param_servers.wire.messages import Code, Header, Kind

PLAN = plan_shards(FlatLayout.of({"w": (4,)}), 2)


def parameters(shard: int, term: int, step: int, code: Code = Code.NONE) -> Header:
    return Header(Kind.PARAMETERS, shard, 0, term, step, code=code, length=8)


def deliver(state: ClientState, shard: int, header: Header, value: float) -> None:
    state.slot(shard, header).fill_(value)
    state.arrived(shard, header)


def test_parameters_are_complete_when_every_shard_has_sent_the_same_version() -> None:
    state = ClientState(PLAN, asynchronous=False)
    deliver(state, 0, parameters(0, 1, 0), 1.0)
    assert state.take() is None
    deliver(state, 1, parameters(1, 1, 0), 2.0)
    pull = state.take()
    assert pull is not None and pull.step == 0
    assert pull.parameters.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_what_was_pulled_stays_constant_while_the_next_version_arrives() -> None:
    state = ClientState(PLAN, asynchronous=False)
    for shard in range(2):
        deliver(state, shard, parameters(shard, 1, 0), 1.0)
    pull = state.take()
    assert pull is not None
    deliver(state, 0, parameters(0, 1, 1), 7.0)
    assert pull.parameters.tolist() == [1.0] * 4
    assert state.take() is None  # a newer version exists, half of it is here


def test_a_version_sent_twice_is_complete_only_when_its_second_frame_is() -> None:
    """The second frame begins to arrive before the end of the first is handled: both write into the same buffer.

    Were the first to count, `take` would swap the buffers under the second frame, whose end would then vouch for the
    other buffer, in which nothing of this version lies.
    """
    state = ClientState(PLAN, asynchronous=False)
    deliver(state, 1, parameters(1, 1, 0), 2.0)
    first = state.slot(0, parameters(0, 1, 0))
    first.fill_(1.0)
    second = state.slot(0, parameters(0, 1, 0))
    state.arrived(0, parameters(0, 1, 0))
    assert state.take() is None
    second.fill_(1.0)
    state.arrived(0, parameters(0, 1, 0))
    deliver(state, 1, parameters(1, 1, 0), 2.0)
    pull = state.take()
    assert pull is not None and pull.parameters.tolist() == [1.0, 1.0, 2.0, 2.0]
    again = state.take()
    assert again is not None and again.parameters.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_a_streamed_version_counts_when_it_is_sealed_and_nothing_else_has_begun() -> None:
    state = ClientState(PLAN, asynchronous=False)
    for shard in range(2):
        deliver(state, shard, parameters(shard, 1, 1, Code.STREAMED), 3.0)
    assert state.take() is None
    for shard in range(2):
        state.decided(shard, Header(Kind.SEALED, shard, 0, 1, 1))
    pull = state.take()
    assert pull is not None and pull.step == 1


def test_what_a_broken_link_began_is_void() -> None:
    state = ClientState(PLAN, asynchronous=False)
    deliver(state, 1, parameters(1, 1, 0), 2.0)
    state.slot(0, parameters(0, 1, 0)).fill_(5.0)
    state.lost(0)
    assert state.take() is None
    deliver(state, 0, parameters(0, 1, 0), 1.0)
    pull = state.take()
    assert pull is not None and pull.parameters.tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_push_of_a_term_that_is_known_to_be_over_is_stale_at_once(asynchronous: bool) -> None:
    """The servers went back to a checkpoint while the worker computed: they pass over its push without a word."""
    state = ClientState(PLAN, asynchronous)
    for shard in range(2):
        deliver(state, shard, parameters(shard, 1, 1), 1.0)
    pull = state.take()
    assert pull is not None
    for shard in range(2):
        deliver(state, shard, parameters(shard, 2, 0), 2.0)
    receipt = state.begin_push(torch.zeros(4), pull.step, 1).receipt
    assert receipt is not None and not receipt.accepted and receipt.reason == "stale"
    again = state.take()
    assert again is not None and again.step == 0 and again.parameters.tolist() == [2.0] * 4


def test_an_asynchronous_push_of_an_older_version_of_the_same_term_is_for_the_servers_to_judge() -> None:
    state = ClientState(PLAN, asynchronous=True)
    for shard in range(2):
        deliver(state, shard, parameters(shard, 1, 1), 1.0)
    assert state.take() is not None
    state.heard(parameters(0, 1, 2))
    assert state.begin_push(torch.zeros(4), 1, 1).receipt is None


def test_a_second_push_of_a_version_is_stale_once_the_first_has_counted() -> None:
    """Also in asynchronous mode, where a push of an older version is for the servers to judge."""
    state = ClientState(PLAN, asynchronous=True)
    for shard in range(2):
        deliver(state, shard, parameters(shard, 1, 0), 1.0)
    assert state.take() is not None
    first = state.begin_push(torch.ones(4), 0, 1)
    state.heard(Header(Kind.RECEIPT, 0, 0, 1, 1, first.sequence, code=Code.ACCEPTED))
    assert first.receipt is not None and first.receipt.accepted
    second = state.begin_push(torch.ones(4), 0, 1)
    assert second.receipt is not None and second.receipt.reason == "stale"
