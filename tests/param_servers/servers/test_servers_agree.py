"""Servers against torch.optim in one process, on a fixed stream of gradients; servers and workers are threads here."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.exchange import GradientExchange, Receipt, RunStopped
from param_servers.layout import FlatLayout, ShardPlan, plan_shards
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import ParameterServer
from param_servers.wire.messages import HEADER_BYTES, Row

SECRET = b"s" * 32
STEPS = 12
LAYOUT = FlatLayout.of({"a": (50, 77), "b": (13,), "c": (90, 90), "d": (5,)})
OPTIMIZER = OptimizerConfig(optimizer="adam", learning_rate="linear:0.01->0@2000")
INITIAL = torch.linspace(-1, 1, LAYOUT.numel)


def gradient_of(worker: int, step: int) -> Tensor:
    """[P] in the order of LAYOUT."""
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1000 * worker + step))


def reference(workers: int, data_points: int) -> Tensor:
    """torch.optim on the mean of all workers' gradients."""
    parameter = torch.nn.Parameter(INITIAL.clone())
    adam = torch.optim.Adam([parameter], betas=(OPTIMIZER.beta1, OPTIMIZER.beta2), eps=OPTIMIZER.epsilon)
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = OPTIMIZER.schedule(step * workers * data_points)
        mean = gradient_of(0, step)
        for worker in range(1, workers):
            mean = mean + gradient_of(worker, step)
        parameter.grad = mean / workers
        adam.step()
    return parameter.detach()


def reorder(flat: Tensor, source: FlatLayout, target: FlatLayout) -> Tensor:
    views = source.views(flat)
    return torch.cat([views[name].reshape(-1) for name in target.names])


class Threads:
    """A run in threads; `workers` is what each worker does with its exchange."""

    def __init__(self, plan: ShardPlan, config: ExchangeConfig, folder: Path | None = None) -> None:
        self.plan, self.config, self.folder = plan, config, folder
        self.addresses: dict[int, tuple[str, int]] = {}
        self.errors: list[BaseException] = []
        self.last: dict[int, Tensor] = {}
        self.receipts: dict[int, list[Receipt]] = {}
        self.all_here = threading.Barrier(config.num_workers)
        """Nobody begins before all have come: an asynchronous run may be over before the last worker is there."""

    def run(self, data_points: int) -> None:
        threads = [threading.Thread(target=self._serve, args=(shard,)) for shard in range(self.plan.num_shards)]
        threads += [
            threading.Thread(target=self._work, args=(worker, data_points)) for worker in range(self.config.num_workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not self.errors and not any(thread.is_alive() for thread in threads), self.errors

    def _serve(self, shard: int) -> None:
        try:
            ParameterServer(
                shard=shard,
                plan=self.plan,
                initial_parameters=reorder(INITIAL, LAYOUT, self.plan.layout),
                optimizer_config=OPTIMIZER,
                exchange_config=self.config,
                resolve=self.addresses.get,
                secret=SECRET,
                publish_address=lambda host, port: self.addresses.update({shard: (host, port)}),
                should_stop=lambda step, points: f"{STEPS} steps" if step >= STEPS else None,
                checkpoint_dir=self.folder,
            ).run()
        except BaseException as error:
            self.errors.append(error)

    def _work(self, worker: int, data_points: int) -> None:
        exchange: GradientExchange = ServersExchange(
            worker=worker, plan=self.plan, exchange_config=self.config, resolve=self.addresses.get, secret=SECRET
        )
        receipts = self.receipts[worker] = []
        try:
            exchange.pull()
            self.all_here.wait(60)
            while True:
                pull = exchange.pull()
                self.last[worker] = reorder(pull.parameters, self.plan.layout, LAYOUT)
                gradient = reorder(gradient_of(worker, pull.step), LAYOUT, self.plan.layout)
                receipts.append(exchange.push(gradient, pull.step, data_points))
        except RunStopped as stopped:
            assert stopped.reason == f"{STEPS} steps"
        except BaseException as error:
            self.errors.append(error)
        finally:
            exchange.close()


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("sharding", ["even_bytes", "greedy_by_tensor"])
def test_servers_take_the_same_steps_as_one_process_bit_by_bit(tmp_path: Path, servers: int, sharding: str) -> None:
    from param_servers.checkpoint.files import find_newest, load_checkpoint

    plan = plan_shards(LAYOUT, servers, sharding)  # type: ignore[arg-type]
    config = ExchangeConfig(
        exchange="servers", num_workers=3, num_servers=servers, join_timeout_s=30, reconnect_timeout_s=5
    )
    run = Threads(plan, config, tmp_path)
    run.run(data_points=20)
    path = find_newest(tmp_path)
    assert path is not None
    checkpoint = load_checkpoint(path)
    assert (checkpoint.step, checkpoint.data_points) == (STEPS, STEPS * 60)
    assert torch.equal(reorder(checkpoint.parameters, checkpoint.layout, LAYOUT), reference(3, 20))
    assert all(receipt.accepted for receipts in run.receipts.values() for receipt in receipts)


def test_passing_on_and_waiting_take_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from param_servers.checkpoint.files import find_newest, load_checkpoint
    from param_servers.servers import cut_through
    from param_servers.servers.cut_through import CutThrough
    from param_servers.wire import frames

    passed_on = []
    settle = CutThrough.settle

    def counted(cut_through: CutThrough, members: list[Row]) -> set[int] | None:
        streamed = settle(cut_through, members)
        passed_on.append(streamed is not None)
        return streamed

    monkeypatch.setattr(CutThrough, "settle", counted)
    monkeypatch.setattr(frames, "AHEAD_BYTES", HEADER_BYTES)  # a slice is never here with its header at once
    monkeypatch.setattr(frames, "READ_BUDGET_BYTES", 1)
    plan = plan_shards(LAYOUT, 2)
    results = []
    for passes_on in (True, False):
        monkeypatch.setattr(cut_through, "LEAST_BYTES", 0 if passes_on else 1 << 40)
        folder = tmp_path / str(passes_on)
        Threads(plan, ExchangeConfig(exchange="servers", num_workers=2, num_servers=2), folder).run(data_points=10)
        path = find_newest(folder)
        assert path is not None
        results.append(load_checkpoint(path).parameters)
        assert any(passed_on) is passes_on
        passed_on.clear()
    assert torch.equal(*results)


def test_asynchronous_training_counts_every_gradient_once(tmp_path: Path) -> None:
    config = ExchangeConfig(exchange="async", num_workers=3, num_servers=2)
    run = Threads(plan_shards(LAYOUT, 2), config, tmp_path)
    run.run(data_points=7)
    accepted = sum(receipt.accepted for receipts in run.receipts.values() for receipt in receipts)
    assert STEPS - config.num_workers <= accepted <= STEPS, run.receipts  # the end may overtake the last answers


def test_a_gradient_that_is_not_finite_is_answered_and_the_worker_may_try_again() -> None:
    run = Threads(plan_shards(LAYOUT, 2), ExchangeConfig(exchange="servers", num_workers=1, num_servers=2))
    server = [threading.Thread(target=run._serve, args=(shard,)) for shard in range(2)]
    for thread in server:
        thread.start()
    exchange = ServersExchange(
        worker=0, plan=run.plan, exchange_config=run.config, resolve=run.addresses.get, secret=SECRET
    )
    try:
        for where, value in ((0, float("nan")), (-1, float("nan")), (-1, 3e38)):  # in the slice of either server
            pull = exchange.pull()
            bad = torch.ones(LAYOUT.numel)
            bad[where] = value
            assert exchange.push(bad, pull.step, 1) == Receipt(False, 0, "non-finite")
        assert exchange.push(torch.ones(3), 0, 1).reason == "wrong-length"
        assert exchange.push(torch.ones(LAYOUT.numel), 5, 1).reason == "stale"
        while True:
            pull = exchange.pull()
            assert exchange.push(torch.ones(LAYOUT.numel), pull.step, 1).accepted
    except RunStopped:
        pass
    finally:
        exchange.close()
        for thread in server:
            thread.join(30)
    assert not run.errors
