"""What a report says: of one update its norm, of a window its counts and its length."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from param_servers import replica
from param_servers.config import OptimizerConfig
from param_servers.layout import FlatLayout, as_bytes
from param_servers.replica import LocalExchange
from param_servers.servers.server import Reporter
from param_servers.servers.shard import Shard
from param_servers.servers.shard_node import ShardNode
from param_servers.servers.step_commits import Commit, Restore
from param_servers.wire.messages import MEMBER, Kind, Row
from tests.param_servers.servers.test_cut_through import GRADIENT, WORKER, OneWorker, commit, running

LAYOUT = FlatLayout.of({"w": (50,)})
ADAM = OptimizerConfig(optimizer="adam", learning_rate="0.1")
GRADIENTS = [torch.randn(50, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]


def norms_of_the_updates() -> list[float]:
    """torch.optim on the gradients in turn, in float64, and how far each one moved the parameters."""
    parameters = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer, norms = torch.optim.Adam([parameters], lr=0.1, betas=(ADAM.beta1, ADAM.beta2), eps=ADAM.epsilon), []
    for gradient in GRADIENTS:
        before = parameters.detach().clone()
        parameters.grad = gradient.double()
        optimizer.step()
        norms.append(float((parameters.detach() - before).square().sum().sqrt()))
    return norms


def trained(reports: list[dict[str, Any]]) -> None:
    exchange = LocalExchange(
        layout=LAYOUT, initial_parameters=torch.zeros(50), optimizer_config=ADAM, on_report=reports.append
    )
    for gradient in GRADIENTS:
        exchange.push(gradient, exchange.pull().step, 5)
    exchange.close()


def test_the_norm_of_an_update_does_not_grow_with_the_number_of_updates_in_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often: list[dict[str, Any]] = []
    once: list[dict[str, Any]] = []
    monkeypatch.setattr(replica, "REPORT_EVERY_S", 0.0)
    trained(often)
    monkeypatch.setattr(replica, "REPORT_EVERY_S", 1000.0)
    trained(once)
    assert [report["commits"] for report in often] == [1] * 6 and [report["commits"] for report in once] == [6]
    assert [report["update_norm"] for report in often] == pytest.approx(norms_of_the_updates(), rel=1e-4)
    assert once[0]["update_norm"] == often[0]["update_norm"]


def test_a_server_that_ends_between_two_versions_reports_neither() -> None:
    hub: Any = OneWorker()
    hub.bytes_moved = (0, 0)
    node, reports = running(hub), list[dict[str, Any]]()
    reporter = Reporter(node, hub, None, reports.append)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([1.0, 2.0]))
    node.gradient(WORKER, GRADIENT)
    commit(node)
    second = GRADIENT._replace(step=1, sequence=2)
    node.receive_into(WORKER, second)[:] = as_bytes(torch.tensor([float("nan"), 2.0]))
    hub.arriving = (second, 4)
    node.advance(0.0)
    assert node.cut_through.open
    reporter.maybe(last=True)
    assert reports == []


def test_a_replica_tells_the_time_of_its_updates_but_not_as_sections_beside_its_workers() -> None:
    reports: list[dict[str, Any]] = []
    trained(reports)
    assert reports[0]["window_s"] >= reports[0]["applying_s"] > 0.0 == reports[0]["collective_s"]
    assert "sections_s" not in reports[0]


def server(reports: list[dict[str, Any]]) -> tuple[OneWorker, ShardNode, Reporter]:
    hub = OneWorker()
    node = running(hub)
    counting: Any = SimpleNamespace(bytes_moved=(0, 0))
    return hub, node, Reporter(node, counting, None, reports.append)


def pushed(node: ShardNode, step: int, gradient: Tensor, sequence: int) -> None:
    header = GRADIENT._replace(step=step, sequence=sequence)
    place = node.receive_into(WORKER, header)
    place[:] = as_bytes(gradient)
    node.gradient(WORKER, header)
    node.obey(Commit(1, step, 0, 5, (Row(0, 0, sequence, MEMBER),), (0,)))


def test_a_shard_reports_the_norm_of_its_first_update_since_the_last_report() -> None:
    reports: list[dict[str, Any]] = []
    _, node, reporter = server(reports)
    for step, gradient in enumerate(([3.0, 4.0], [30.0, 40.0], [6.0, 8.0])):
        pushed(node, step, torch.tensor(gradient), sequence=step + 1)
        if step == 1:
            reporter._send(reporter._since_s + 2.0)
    reporter.maybe(last=True)
    assert [(report["commits"], report["update_norm"]) for report in reports] == [(2, 5.0), (1, 10.0)]
    assert reports[0]["window_s"] == 2.0


def test_going_back_to_a_checkpoint_is_no_update() -> None:
    reports: list[dict[str, Any]] = []
    _, node, reporter = server(reports)
    pushed(node, 0, torch.tensor([300.0, 400.0]), sequence=1)
    reporter._send(reporter._since_s + 2.0)
    node.obey(Restore(1, 0, 0))
    pushed(node, 0, torch.tensor([3.0, 4.0]), sequence=2)
    reporter.maybe(last=True)
    assert reports[-1]["update_norm"] == 5.0


def test_an_update_that_was_passed_on_while_it_arrived_is_measured_whole() -> None:
    reports: list[dict[str, Any]] = []
    hub, node, reporter = server(reports)
    place = node.receive_into(WORKER, GRADIENT)
    place[:] = as_bytes(torch.tensor([3.0, 4.0]))
    hub.arriving = (GRADIENT, 4)
    node.advance(0.0)
    hub.arriving = None
    node.gradient(WORKER, GRADIENT)
    commit(node)
    reporter.maybe(last=True)
    assert Kind.SEALED in hub.sent and reports[0]["update_norm"] == 5.0


def test_an_update_that_was_taken_back_is_not_the_update_that_is_measured() -> None:
    reports: list[dict[str, Any]] = []
    hub, node, reporter = server(reports)
    first, second = node.receive_into(WORKER, GRADIENT), node.receive_into(WORKER, GRADIENT)
    first[:] = as_bytes(torch.tensor([3.0, 4.0]))
    second[:] = as_bytes(torch.tensor([3.0, 99.0]))
    hub.arriving = (GRADIENT, 8)
    node.advance(0.0)
    node.gradient(WORKER, GRADIENT)
    commit(node)
    reporter.maybe(last=True)
    assert Kind.ABORTED in hub.sent and reports[0]["update_norm"] == 5.0


def test_the_norms_of_all_shards_of_one_update_combine_to_the_whole() -> None:
    shards = [Shard(torch.zeros(numel), ADAM) for numel in (20, 30)]
    for step, gradient in enumerate(GRADIENTS):
        for shard, part in zip(shards, gradient.split((20, 30)), strict=True):
            shard.measure_next_update()
            shard.apply([part], 0.1)
        combined = sum(shard.update_norm**2 for shard in shards if shard.update_norm is not None) ** 0.5
        assert combined == pytest.approx(norms_of_the_updates()[step], rel=1e-4)
