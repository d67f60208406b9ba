"""Who claims to be what the run does not have, or says what nobody of it would say."""

import types
from enum import IntEnum
from typing import Any

import pytest
import torch

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import BadMessage, ConfigError
from param_servers.layout import FlatLayout, plan_shards
from param_servers.majority.chief import check_standing
from param_servers.servers.server import ParameterServer
from param_servers.wire.frames import Event, Joined, Left, Message
from param_servers.wire.handshake import ROLES, Hello, Peer, Role
from param_servers.wire.hub import Hub
from param_servers.wire.messages import Header, Kind, Row, pack_rows
from tests.param_servers.servers.test_joining import PLAN, SECRET, Serving
from tests.waiting import wait_until


class OtherRole(IntEnum):
    SPECTATOR = 255


@pytest.mark.parametrize(
    ("claim", "line"),
    [
        ({"term": 2**32 - 1}, "closed the connection"),
        ({"term": 2**31 - 1}, "it claims to have seen term 2147483647, this run is at 1"),
        ({"role": OtherRole.SPECTATOR}, "there is no spectator 0 in this run of 1 workers"),
        ({"role": Role.SERVER}, "there is no server 0 in this run of 1 servers"),
        ({"role": Role.SERVER, "rank": 1}, "there is no server 1 in this run of 1 servers"),
        ({"rank": 1}, "there is no worker 1 in this run of 1 workers"),
        ({"fingerprint": "another"}, "its layout is another"),
        ({"fingerprint": PLAN.fingerprint_of(True)}, "one of it and this run is asynchronous, the other is not"),
        ({"fingerprint": "\x1b[2Jbad"}, "closed the connection"),
        ({"shard": 1}, "it is server 0, but server 1 was wanted"),
    ],
)
def test_whoever_claims_what_the_run_does_not_have_is_turned_away_and_harms_nobody(
    claim: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROLES, 255, OtherRole.SPECTATOR)
    hello = Hello(Role.WORKER, 0, 99, 0, PLAN.fingerprint)._replace(**claim)
    with Serving() as run:
        worker = run.worker()
        assert run.trains(worker)
        left = run.knock(hello)
        assert isinstance(left, Left) and line in left.reason
        assert run.trains(worker)
        worker.close()


@pytest.mark.parametrize(("data_points", "size"), [(2**63 - 1, 32), (2**32 + 1, 32), (-1, 32), (5, 28), (5, 36)])
def test_a_gradient_over_impossibly_many_data_points_or_of_another_length_closes_its_link_and_harms_nobody(
    data_points: int, size: int
) -> None:
    with Serving(num_workers=2) as run:
        wait_until(lambda: 0 in run.addresses, "the server")
        hub = Hub(SECRET, lambda peer, header: memoryview(bytearray(header.length)))
        server, events = Peer(Role.SERVER, 0), list[Event]()
        hub.dial(run.addresses[0], Hello(Role.WORKER, 1, 0, 0, PLAN.fingerprint))
        wait_until(lambda: hub.poll(0.05) is not None and hub.connected(server), "its link")
        header = Header(Kind.GRADIENT, 1, 0, 1, 0, 1, data_points)
        hub.send(server, header, memoryview(bytearray(size)))
        wait_until(lambda: events.extend(hub.poll(0.05)) or any(isinstance(event, Left) for event in events), "the end")
        hub.shut()
        worker = run.worker()
        assert worker.pull().step == 0
        worker.close()


@pytest.mark.parametrize("data_points", [2**32 + 1, -1])
def test_a_worker_does_not_send_for_ever_what_servers_close_its_link_for(data_points: int) -> None:
    with Serving() as run:
        worker = run.worker()
        step = worker.pull().step
        with pytest.raises((BadMessage, ConfigError), match=f"{data_points}"):
            worker.push(torch.ones(8), step, data_points)
        assert run.trains(worker)
        worker.close()


@pytest.mark.parametrize(
    ("header", "payload", "line"),
    [
        (Header(Kind.ARRIVED, 1, data_points=2**63 - 1), pack_rows([Row(0, 0, 1)]), "data points"),
        (Header(Kind.ARRIVED, 1, data_points=1), pack_rows([Row(0, 0, 1, 99)]), "does not exist"),
        (Header(Kind.ARRIVED, 1, data_points=1), b"\0" * 17, "whole number of rows"),
        (Header(Kind.WRITTEN, 1), b"{", "no JSON"),
        (Header(Kind.WRITTEN, 1), b"[" * 100_000, "no JSON"),
        (Header(Kind.WRITTEN, 1), b"[]", "that is none"),
        (Header(Kind.WRITTEN, 1), b"{}", "that is none"),
        (Header(Kind.WRITTEN, 1), b'{"file": []}', "that is none"),
        (Header(Kind.WRITTEN, 1), b'{"file": "shard-1-of-2.safetensors", "bytes": 9}', "that is none"),
        (Header(Kind.WRITTEN, 1), b'{"error": 7}', "that is none"),
    ],
)
def test_what_no_server_says_closes_its_link_only(header: Header, payload: bytes, line: str) -> None:
    plan, events, impostor = plan_shards(FlatLayout.of({"w": (8,)}), 2), list[dict[str, Any]](), Peer(Role.SERVER, 1)
    config = ExchangeConfig(exchange="servers", num_servers=2)
    closed: list[Peer] = []
    hub: Any = types.SimpleNamespace(send=lambda *_: None, flush=lambda: None, close=closed.append, bytes_moved=(0, 0))
    server = ParameterServer(
        shard=0,
        plan=plan,
        initial_parameters=torch.zeros(8),
        optimizer_config=OptimizerConfig(),
        exchange_config=config,
        resolve=lambda shard: None,
        secret=SECRET,
        hub=hub,
        on_event=events.append,
    )
    server.begin()
    server.handle(Joined(impostor, Hello(Role.SERVER, 1, 0, 0, plan.fingerprint)))
    server.handle(Message(impostor, header, memoryview(payload)))
    assert closed == [impostor] and events[-1]["event"] == "server_lost"
    assert server.chief is not None
    with pytest.raises(BadMessage, match=line):
        server.chief.hear(impostor, header, memoryview(payload))


@pytest.mark.parametrize(
    "header",
    [
        Header(Kind.ABORTED, 1, step=-1),
        Header(Kind.ABORTED, 1, step=2**63 - 1),
        Header(Kind.ABORTED, 1, data_points=2**63 - 1),
        Header(Kind.GRADIENT, 1, data_points=2**33),
    ],
)
def test_a_rank_that_is_where_none_can_be_is_not_believed(header: Header) -> None:
    with pytest.raises(BadMessage, match="data points"):
        check_standing(header)
