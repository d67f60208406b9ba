"""What a shard and shard 0's chief do when everybody goes back to a checkpoint."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import CheckpointError, ParamServersError, RunBroken
from param_servers.layout import FlatLayout, as_bytes, plan_shards
from param_servers.servers.chief import Chief
from param_servers.servers.coordinator import Coordinator
from param_servers.servers.server import ParameterServer
from param_servers.servers.shard import Shard
from param_servers.servers.shard_node import ShardNode, pack_order, unpack_order
from param_servers.servers.step_commits import Commit, Expel, Give, Restore, Stop
from param_servers.wire.handshake import Hello, Peer, Role
from param_servers.wire.messages import MEMBER, RECIPIENT, Code, Header, Kind, Row

WORKER = Peer(Role.WORKER, 0)


class Recorder:
    """A hub, checkpoints and shard 0, that write down what they are asked and told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def send(self, peer: Peer, header: Header, payload: Any = None) -> None:
        self.calls.append(("send", peer, header))

    def cancel(self, peer: Peer, kind: Kind) -> None:
        pass

    def flush(self) -> None:
        pass

    def tell(self, header: Header, what: Any) -> None:
        if header.kind == Kind.READY:
            self.calls.append(("ready", header.term, header.step))

    def make_room(self, step: int, term: int) -> None:
        self.calls.append(("make_room", step, term))

    def write(self, step: int, term: int, *slice_and_done: Any) -> None:
        self.calls.append(("write", step, term))

    def publish(self, step: int, term: int, data_points: int, files: Any, *rest: Any) -> None:
        self.calls.append(("publish", step, term, files))

    def set_aside_after(self, step: int, done: Callable[[], None]) -> None:
        self.calls.append(("set_aside_after", step))
        self.disk(done)

    def load(self, step: int, done: Callable[[Tensor, None], None]) -> None:
        self.calls.append(("load", step))
        self.disk(lambda: done(torch.full((2,), float(step)), None))

    def disk(self, work: Callable[[], None]) -> None:
        """A fast one; see `slow`."""
        work()

    def slow(self) -> list[Callable[[], None]]:
        """From now on the disk does nothing by itself: what it has to do."""
        waiting: list[Callable[[], None]] = []
        self.disk = waiting.append  # type: ignore[method-assign]
        return waiting


def shard_node(recorder: Any, tell: Any = None) -> ShardNode:
    shard = Shard(torch.zeros(2), OptimizerConfig(optimizer="sgd", learning_rate="1"))
    node = ShardNode(0, shard, recorder, False, recorder, tell or recorder.tell)
    node.joined(Hello(Role.WORKER, 0, 0, 0, ""))
    return node


def answers(recorder: Recorder) -> list[tuple[int, int, Code]]:
    """(term, sequence, code) of the parameters sent."""
    sent = [call[2] for call in recorder.calls if call[0] == "send" and call[2].kind == Kind.PARAMETERS]
    return [(header.term, header.sequence, header.code) for header in sent]


def test_a_roll_back_takes_back_the_answers_of_the_history_that_it_undoes() -> None:
    recorder = Recorder()
    node = shard_node(recorder)
    node.obey(Restore(1, 0, 0))
    header = Header(Kind.GRADIENT, 0, 0, 1, 0, sequence=1, data_points=5, length=8)
    place = node.receive_into(WORKER, header)
    place[:] = as_bytes(torch.ones(2))
    node.gradient(WORKER, header)
    node.obey(Commit(1, 0, 0, 5, (Row(0, 0, 1, MEMBER | RECIPIENT),), (0,)))
    assert answers(recorder) == [(1, 1, Code.ACCEPTED)]
    node.obey(Restore(2, 0, 0))
    node.obey(Give(2, 0, (Row(0, 0, 0),)))
    assert answers(recorder)[1:] == [(2, 0, Code.NONE)]  # push 1 is in no step any more


def test_parameters_that_are_not_sent_at_the_end_leave_the_answer_that_they_bore() -> None:
    recorder: Any = Recorder()
    node = shard_node(recorder)
    recorder.cancel = lambda peer, kind: recorder.calls.clear()  # nothing has left yet
    node.obey(Restore(1, 0, 0))
    header = Header(Kind.GRADIENT, 0, 0, 1, 0, sequence=1, data_points=5, length=8)
    node.receive_into(WORKER, header)[:] = as_bytes(torch.ones(2))
    node.gradient(WORKER, header)
    node.obey(Commit(1, 0, 0, 5, (Row(0, 0, 1, MEMBER | RECIPIENT),), (0,)))
    node.obey(Stop("enough", False))
    sent = [(header.kind, header.step, header.sequence, header.code) for _, _, header in recorder.calls]
    assert sent == [(Kind.STEP, 1, 1, Code.ACCEPTED), (Kind.STOP, 0, 0, Code.NONE)]
    node.left(0)
    node.tell_end(WORKER)  # it has dialled again, as who is not known yet: no answer is better than a wrong one
    assert [header.kind for _, _, header in recorder.calls] == [Kind.STOP]


@pytest.mark.parametrize("order", [Expel(0, 0, "caf\udce9: full"), Stop("caf\udce9: full", True)])
def test_a_reason_with_a_file_s_name_that_is_no_text_reaches_servers_and_workers(order: Expel | Stop) -> None:
    assert unpack_order(*pack_order(order)) == order._replace(reason="caf\\udce9: full")
    recorder: Any = Recorder()
    recorder.close = lambda peer: None
    shard_node(recorder).obey(order)
    assert recorder.calls[-1][2].kind == (Kind.EXPELLED if isinstance(order, Expel) else Kind.STOP)


def test_later_checkpoints_are_set_aside_before_anybody_goes_back() -> None:
    recorder: Any = Recorder()
    coordinator = Coordinator(ExchangeConfig(exchange="servers"), 0.0, saved=(40, 400), term=3)
    chief = Chief(coordinator, shard_node(recorder), recorder, recorder, lambda: 0.0, lambda event: None)
    chief.begin()
    assert recorder.calls[:2] == [("set_aside_after", 40), ("load", 40)]


def test_while_the_disk_is_slow_nothing_waits_for_it_and_a_load_that_was_overtaken_does_not_count() -> None:
    recorder: Any = Recorder()
    node = shard_node(recorder)
    node.obey(Restore(1, 0, 0))
    waiting = recorder.slow()
    node.obey(Restore(2, 7, 70))
    header = Header(Kind.GRADIENT, 0, 0, 1, 0, sequence=1, data_points=5, length=8)
    place = node.receive_into(WORKER, header)
    place[:] = as_bytes(torch.ones(2))
    node.gradient(WORKER, header)  # of the history that is being left
    node.obey(Restore(3, 5, 50))
    for loaded in waiting:
        loaded()
    assert [call for call in recorder.calls if call[0] == "ready"] == [("ready", 1, 0), ("ready", 3, 5)]
    assert (node.term, node.step, node.data_points) == (3, 5, 50)
    assert node.shard.parameters.tolist() == [5.0, 5.0]


def test_a_run_that_ends_while_the_disk_is_slow_does_not_go_back_any_more() -> None:
    recorder: Any = Recorder()
    coordinator = Coordinator(ExchangeConfig(exchange="servers"), 0.0, saved=(40, 400), term=3)
    chief = Chief(coordinator, shard_node(recorder), recorder, recorder, lambda: 0.0, lambda event: None)
    set_aside = recorder.slow()
    chief.begin()
    chief.stop("asked to")
    set_aside[0]()
    assert recorder.calls[0] == ("set_aside_after", 40) and ("load", 40) not in recorder.calls


def test_a_run_whose_folder_cannot_be_read_any_more_ends_with_a_checkpoint_and_tells_everybody() -> None:
    recorder: Any = Recorder()
    coordinator = Coordinator(ExchangeConfig(exchange="servers"), 0.0, checkpoints=True)
    node = shard_node(recorder, lambda *what: chief.told(*what))

    def unreadable(step: int, data_points: int) -> str | None:
        if step:
            raise RunBroken("stop.json: permission denied for a minute")
        return None

    chief = Chief(coordinator, node, recorder, recorder, lambda: 0.0, lambda event: None, should_stop=unreadable)
    chief.begin()
    chief.joined(Hello(Role.WORKER, 0, 0, 0, ""))
    header = Header(Kind.GRADIENT, 0, 0, 1, 0, sequence=1, data_points=5, length=8)
    node.receive_into(WORKER, header)[:] = as_bytes(torch.ones(2))
    node.gradient(WORKER, header)
    chief.tick()
    assert coordinator.state == "stopping" and ("write", 1, 1) in recorder.calls
    recorder.publish = lambda *what: what[-1]({})
    chief.told(Header(Kind.WRITTEN, 0, term=1, step=1), {"file": "shard 0"})
    assert node.ended == ("stop.json: permission denied for a minute", True)


def test_who_waits_for_a_lost_server_hears_a_request_to_stop() -> None:
    recorder: Any = Recorder()
    coordinator = Coordinator(ExchangeConfig(exchange="servers", num_servers=2), 0.0, checkpoints=True)
    node, asked = shard_node(recorder), [None, "SIGTERM"]
    chief = Chief(
        coordinator, node, recorder, recorder, lambda: 0.0, lambda event: None, should_stop=lambda *counts: asked.pop(0)
    )
    chief.begin()
    chief.tick()
    assert coordinator.state == "gathering"  # server 1 has not come
    chief.tick()
    assert (coordinator.state, node.ended) == ("stopped", ("SIGTERM", False))


def test_a_slice_that_was_written_before_a_roll_back_is_in_no_checkpoint_after_it() -> None:
    recorder: Any = Recorder()
    config = ExchangeConfig(exchange="servers", num_servers=2, checkpoint_every_steps=1)
    coordinator = Coordinator(config, 0.0, checkpoints=True)
    node = shard_node(recorder, lambda *what: chief.told(*what))
    chief = Chief(coordinator, node, recorder, recorder, lambda: 0.0, lambda event: None)
    server, gradient = Hello(Role.SERVER, 1, 0, 0, ""), torch.ones(2)

    def one_step(sequence: int) -> None:
        chief.told(Header(Kind.READY, 1, term=coordinator.term), None)
        header = Header(Kind.GRADIENT, 0, 0, coordinator.term, 0, sequence, 5, length=8)
        place = node.receive_into(WORKER, header)
        place[:] = as_bytes(gradient)
        node.gradient(WORKER, header)
        chief.told(Header(Kind.ARRIVED, 1, term=coordinator.term, data_points=5), Row(0, 0, sequence))

    def written(shard: int, term: int) -> None:
        chief.told(Header(Kind.WRITTEN, shard, term=term, step=1), {"file": f"shard {shard} of term {term}"})

    chief.begin()
    chief.joined(server)
    chief.joined(Hello(Role.WORKER, 0, 0, 0, ""))
    one_step(1)
    chief.left(Peer(Role.SERVER, 1), 0, "reset")
    chief.joined(server)
    one_step(2)
    begun = [("make_room", 1, 1), ("write", 1, 1), ("make_room", 1, 2), ("write", 1, 2)]
    assert [call for call in recorder.calls if call[0] in ("make_room", "write")] == begun
    written(0, 2)
    written(1, 1)  # the disk of server 1 was slow
    assert not [call for call in recorder.calls if call[0] == "publish"]
    written(1, 2)
    files = [{"file": "shard 0 of term 2"}, {"file": "shard 1 of term 2"}]
    assert recorder.calls[-1] == ("publish", 1, 2, files)


def test_a_checkpoint_that_is_damaged_at_a_roll_back_is_no_bad_input() -> None:
    """At a start it is."""

    class Damaged:
        def newest(self, on_skip: object) -> tuple[int, int, int]:
            return 0, 0, 0

        def poll(self) -> None:
            raise CheckpointError("server 1 cannot find checkpoint step-2000")

    checkpoints: Any = Damaged()
    server = ParameterServer(
        shard=1,
        plan=plan_shards(FlatLayout.of({"w": (4,)}), 2),
        initial_parameters=torch.zeros(4),
        optimizer_config=OptimizerConfig(),
        exchange_config=ExchangeConfig(exchange="servers", num_servers=2),
        resolve=lambda shard: None,
        secret=b"s" * 16,
        checkpoints=checkpoints,
    )
    with pytest.raises(CheckpointError, match="cannot find"):
        server.look_at_the_clock()
    server.node.term = 1
    with pytest.raises(ParamServersError, match="cannot find") as fault:
        server.look_at_the_clock()
    assert not isinstance(fault.value, CheckpointError)
