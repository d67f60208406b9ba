"""A majority goes on without the late, the lost and the expelled, and takes them back."""

import itertools
import socket
import threading
from pathlib import Path

import pytest
import torch

from param_servers.checkpoint.files import find_newest
from param_servers.config import ExchangeConfig
from param_servers.errors import BadMessage, Diverged, ParamServersError, PeerLost, RunBroken, RunStopped
from param_servers.exchange import MOST_REJECTED, Receipt, never, unread
from param_servers.layout import FlatLayout
from param_servers.majority.chief import MajorityChief
from param_servers.majority.exchange import MajorityExchange
from param_servers.timeouts import AwakeClock
from param_servers.wire.frames import Left
from param_servers.wire.handshake import Peer, Role
from param_servers.wire.hub import Hub
from tests.param_servers.allreduce.test_allreduce import CONFIG, INITIAL, LAYOUT, gradient, reference
from tests.param_servers.majority.ranks import PATIENCE_S
from tests.waiting import wait_until


def test_a_late_rank_holds_up_nobody_and_its_gradient_is_answered_as_stale(start):
    run = start(3, num_gradients=2).start(0, 1, 2)
    late = run.ranks[2].pull()
    run.together([0, 1])
    run.newest(2, 1)
    assert run.ranks[2].push(gradient(2, 0), late.step, 10) == Receipt(False, 1, "stale")
    run.together([1, 2])
    for rank in range(3):
        pulled = run.newest(rank, 2)
        assert torch.equal(pulled.parameters, reference([[0, 1], [1, 2]]))
        assert (pulled.step, pulled.data_points) == (2, 40)


def test_more_data_points_than_a_gradient_may_have_are_their_rank_s_error_and_the_run_goes_on(start):
    run = start(2).start(0, 1)
    with pytest.raises(BadMessage, match="^a gradient over 4294967297 data points$"):
        run.ranks[1].push(gradient(1, 0), run.ranks[1].pull().step, 2**32 + 1)
    assert all(receipts[-1].accepted for receipts in run.together([0, 1]).values())


def test_a_rank_that_dies_between_steps_is_replaced_by_the_backup_rank(start):
    run = start(3, num_gradients=2).start(0, 1, 2)
    run.together([0, 1])
    run.newest(2, 1)  # its sum is over: a member's death in it would take the step back
    run.die(1)
    results = run.together([0, 2], steps=3)
    assert all(receipt.accepted for rank in (0, 2) for receipt in results[rank])
    assert torch.equal(run.newest(0, 4).parameters, reference([[0, 1], [0, 2], [0, 2], [0, 2]]))
    assert "regrouping" in {event["event"] for event in run.events}


def test_with_fewer_ranks_than_gradients_the_run_goes_on_with_those_that_are_left(start):
    run = start(3).start(0, 1, 2)
    run.together([0, 1, 2])
    run.die(2)
    results = run.together([0, 1], steps=2)
    assert all(receipt.accepted for rank in (0, 1) for receipt in results[rank])
    for rank in (0, 1):  # their sum is over: a member's death in it would take the step back
        assert torch.allclose(run.newest(rank, 3).parameters, reference([[0, 1, 2], [0, 1], [0, 1]]))
    run.die(1)
    assert run.together([0])[0][0].accepted
    assert torch.allclose(run.newest(0, 4).parameters, reference([[0, 1, 2], [0, 1], [0, 1], [0]]))
    shrunk = [event["message"] for event in run.events if event["event"] == "shrunk"]
    for left, message in zip((2, 1), shrunk, strict=True):
        assert f"{left} ranks are left for 3 gradients" in message


def test_with_fewer_than_min_workers_the_loss_of_a_rank_ends_the_run_with_a_checkpoint(start, tmp_path):
    run = start(2, min_workers=2).start(0, 1, checkpoint_dir=tmp_path)
    run.together([0, 1])
    run.die(1)
    error = run.together([0])[0]
    assert isinstance(error, RunBroken) and "1 ranks are left for 2 gradients" in str(error)
    assert (tmp_path / "step-1").is_dir()


def test_a_rank_comes_back_and_takes_over_the_newest_state(start):
    run = start(3, num_gradients=2).start(0, 1, 2)
    run.together([0, 1])
    run.die(2)
    run.together([0, 1])
    run.start(2)
    assert run.ranks[2].pull().step == 2
    run.together([1, 2])
    assert torch.equal(run.newest(0, 3).parameters, reference([[0, 1], [0, 1], [1, 2]]))


def test_a_silent_rank_is_expelled_and_the_others_go_on(start):
    run = start(3, num_gradients=2, step_timeout_s=3).start(0, 1, 2)
    run.together([0, 1])
    silent = run.ranks[2]
    release, reached = threading.Event(), threading.Event()

    def stuck(event):
        reached.set()
        release.wait(PATIENCE_S)

    silent._handle = stuck  # its comm thread no longer answers, its connections stay open
    results = run.together([0, 1], steps=2)
    assert reached.is_set() and all(receipt.accepted for rank in (0, 1) for receipt in results[rank])
    assert run.newest(0, 3).step == 3
    assert any(event["event"] == "expelled" and "rank 2" in event["message"] for event in run.events)
    release.set()


def test_the_loss_of_rank_0_is_told_by_the_others_and_the_next_one_writes_a_checkpoint(start, tmp_path):
    run = start(3, num_gradients=2).start(0, 1, 2, checkpoint_dir=tmp_path)
    run.together([0, 1])
    run.die(0)
    for error in run.together([1, 2]).values():
        assert isinstance(error, PeerLost) and "rank 0, which decides who takes part, is lost" in str(error)
    assert (tmp_path / "step-1").is_dir()


@pytest.mark.parametrize("can_be_read", [True, False])
def test_what_a_rank_saves_when_the_next_rank_0_has_looked_is_gone_on_from_or_set_aside(start, tmp_path, can_be_read):
    run = start(2).start(0, 1, checkpoint_dir=tmp_path, should_stop=lambda step, points: "1 step" if step else None)
    run.together([0, 1])
    run.close()
    run.board.addresses.clear()
    run.start(0, 1, checkpoint_dir=tmp_path)
    run.together([0, 1], steps=2)
    old, begun, go_on = run.ranks.pop(1), threading.Event(), threading.Event()
    finish = old.replica.finish

    def slow_disk():
        begun.set()
        go_on.wait(PATIENCE_S)
        return finish()

    old.replica.finish = slow_disk
    run.die(0)
    assert begun.wait(PATIENCE_S)
    run.board.addresses.clear()
    run.start(0, checkpoint_dir=tmp_path)
    go_on.set()
    old.close()
    assert find_newest(tmp_path).name == "step-3"
    folder = tmp_path if can_be_read else tmp_path / "of another file system"
    (folder / "step-9").mkdir(parents=not can_be_read)
    run.start(1, checkpoint_dir=folder)
    assert run.ranks[1].pull().step == (3 if can_be_read else 1)
    later = tmp_path / ("step-9.aside-1" if can_be_read else "step-3.aside-1")
    wait_until(later.is_dir, later.name)
    assert (folder / "step-9").is_dir() != can_be_read  # only rank 0 renames
    assert find_newest(tmp_path).name == ("step-3" if can_be_read else "step-1")


def test_where_rank_0_was_expelled_the_next_one_writes_the_last_checkpoint(start, tmp_path):
    def stop(step, data_points):
        return "3 steps" if step >= 3 else None

    run = start(3, step_timeout_s=3, join_timeout_s=20).start(0, 1, 2, checkpoint_dir=tmp_path, should_stop=stop)
    run.together([0, 1, 2])
    for outcome in run.together([1, 2], steps=10).values():  # rank 0's game hangs; its chief does not
        assert isinstance(outcome, RunStopped) and outcome.reason == "3 steps"
    assert any(event["event"] == "expelled" and "rank 0" in event["message"] for event in run.events)
    assert find_newest(tmp_path).name == "step-3"


def test_a_rank_that_finds_rank_0_s_earlier_address_asks_for_it_again_and_is_the_same_process(start, monkeypatch):
    run, tokens, dial = start(2), [], Hub.dial

    def remembered(hub, address, hello, **how):
        tokens.extend([hello.process_token] * (hello.rank == 1))
        dial(hub, address, hello, **how)

    monkeypatch.setattr(Hub, "dial", remembered)
    with socket.socket() as old:
        old.bind(("127.0.0.1", 0))
        run.board.publisher(0)(*old.getsockname())
        run.start(1)
        wait_until(lambda: run.ranks[1]._redial._reason != "no address known", "a dial in vain")
        run.start(0)
    results = run.together([0, 1])
    assert all(receipt.accepted for rank in (0, 1) for receipt in results[rank])
    assert len(tokens) > 1 and len(set(tokens)) == 1


def test_a_full_disk_costs_the_chief_its_log_and_no_rank_the_run(start):
    run = start(2).start(0, 1, audit_path=Path("/dev/full"))
    for receipts in run.together([0, 1], steps=2).values():
        assert all(receipt.accepted for receipt in receipts)
    assert any("No space left on device" in event["message"] for event in run.events)


@pytest.mark.parametrize(("stopped_s", "is_left_alone"), [(5.0, False), (500.0, True)])
def test_only_a_rank_0_that_was_stopped_for_so_long_that_others_leave_takes_itself_for_left_alone(
    stopped_s, is_left_alone
):
    chief = MajorityChief(
        config=ExchangeConfig(exchange="majority", num_workers=2, step_timeout_s=60),
        fingerprint=LAYOUT.fingerprint,
        secret=b"0123456789abcdef",
        store_port=1,
        learning_rate=lambda data_points: 0.1,
        should_stop=never,
        on_event=unread,
        audit=None,
    )
    reads = itertools.accumulate([0.0, 1.0, stopped_s, *[2.0] * 20])
    chief._clock = AwakeClock(4.0, lambda: next(reads))
    for rank in range(2):
        chief._coordinator.joined(rank, 0)
    for _ in range(22):
        now_s = chief._clock.now_s()
    chief._handle(Left(Peer(Role.WORKER, 1), "it died"), now_s)  # 40 s after rank 0 went on
    assert (chief._coordinator.phase == "stopped") == is_left_alone
    chief._hub.shut()


def test_a_rank_with_another_model_is_turned_away(start):
    run = start(2, join_timeout_s=2).start(0)
    run.ranks[1] = MajorityExchange(
        rank=1,
        layout=FlatLayout.of(dict(reversed(list(zip(LAYOUT.names, LAYOUT.shapes, strict=True))))),
        initial_parameters=INITIAL,
        optimizer_config=CONFIG,
        exchange_config=run.config,
        secret=b"0123456789abcdef",
        resolve=run.board.resolve,
    )
    with pytest.raises(ParamServersError, match="this run's is"):
        run.ranks[1].pull()


def test_ranks_that_do_not_come_are_named(start):
    run = start(3, join_timeout_s=5, min_workers=3).start(0, 1)
    for error in run.together([0, 1]).values():
        assert isinstance(error, ParamServersError)
    assert any("ranks [2] did not come within 5 s" in event["message"] for event in run.events)


@pytest.mark.parametrize("value", [float("nan"), 3e38])
def test_a_gradient_that_is_not_finite_or_would_overflow_is_answered_and_takes_part_in_nothing(start, value):
    run = start(2).start(0, 1)
    assert run.ranks[0].push(torch.full((LAYOUT.numel,), value), run.ranks[0].pull().step, 1)[2] == "non-finite"
    run.together([0, 1])
    assert torch.equal(run.newest(0, 1).parameters, reference([[0, 1]]))


def test_a_rank_whose_gradients_are_never_finite_has_diverged(start):
    run = start(2).start(0, 1)
    bad = torch.full((LAYOUT.numel,), float("nan"))
    with pytest.raises(Diverged, match=f"none of the last {MOST_REJECTED} gradients was finite"):
        for _ in range(MOST_REJECTED):
            run.ranks[1].push(bad, run.ranks[1].pull().step, 1)
