"""A module trained by processes of this machine takes the steps that one process would take."""

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from param_servers import running
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, RunBroken
from param_servers.layout import FlatLayout, plan_shards
from param_servers.running import connect, serve, shared_secret, train_on_one_machine
from param_servers.servers.server import ParameterServer
from tests.ports import free_port

INPUT = torch.arange(12.0).view(4, 3) / 12


def loss(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """Worker 0 has the first two samples, worker 1 the others."""
    return model(INPUT[2 * rank : 2 * rank + 2]).square().mean()


def test_a_module_learns_on_one_machine_what_it_learns_in_one_process() -> None:
    torch.manual_seed(1)
    model, alone = (torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)) for _ in "12")
    alone.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        ((loss(alone, 0, 0) + loss(alone, 1, 0)) / 2).backward()
        optimizer.step()
    steps = train_on_one_machine(
        model,
        loss,
        OptimizerConfig(optimizer="sgd", learning_rate="0.5"),
        ExchangeConfig(exchange="servers", num_workers=2, num_servers=2, port=free_port()),  # of which there is one
        data_points=2,
        should_stop=lambda step, data_points: "enough" if data_points >= 40 else None,
    )
    assert steps == 10
    for mine, reference in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, reference)


def test_each_worker_clips_its_gradient_as_the_optimizer_s_configuration_says() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    train_on_one_machine(
        model,
        lambda model, rank, step: 100 * model.weight.sum(),
        OptimizerConfig(optimizer="sgd", learning_rate="1", clip_rule="global", clip_norm=0.5),
        ExchangeConfig(exchange="servers"),
        data_points=1,
        should_stop=lambda step, data_points: "enough" if step else None,
    )
    assert model.weight.item() == pytest.approx(-0.5)


@pytest.mark.parametrize("good_steps", [0, 3])
def test_where_all_workers_fail_they_are_named_and_nobody_is_waited_for(good_steps: int) -> None:
    def fails(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        if step < good_steps:
            return model.weight.sum()
        raise ArithmeticError("of the loss")

    began_s = time.monotonic()
    with pytest.raises(RunBroken, match="worker 0, 1 failed"):
        train_on_one_machine(
            torch.nn.Linear(1, 1),
            fails,
            OptimizerConfig(),
            ExchangeConfig(exchange="servers", num_workers=2, join_timeout_s=300),
            data_points=1,
            should_stop=lambda step, data_points: None,
        )
    assert time.monotonic() - began_s < 150


def test_where_a_server_fails_the_others_do_not_wait_for_it_to_come_back() -> None:
    def should_stop(step: int, data_points: int) -> None:
        if step == 3:
            raise KeyError("a slip of the user's")

    began_s = time.monotonic()
    with pytest.raises(RunBroken, match="^server 0 failed$"):
        train_on_one_machine(
            torch.nn.Linear(3, 1),
            loss,
            OptimizerConfig(),
            ExchangeConfig(exchange="servers", num_workers=2, num_servers=2, reconnect_timeout_s=300),
            data_points=1,
            should_stop=should_stop,
        )
    assert time.monotonic() - began_s < 150


def test_workers_whose_exit_codes_come_after_the_end_of_their_pipes_have_failed_too() -> None:
    def fails_slowly(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        os.closerange(3, 4096)  # as the kernel does when a process ends, a moment before the code
        time.sleep(0.5)
        os._exit(1)

    with pytest.raises(RunBroken, match="worker 0, 1 failed"):
        train_on_one_machine(
            torch.nn.Linear(1, 1),
            fails_slowly,
            OptimizerConfig(),
            ExchangeConfig(exchange="servers", num_workers=2, join_timeout_s=300),
            data_points=1,
            should_stop=lambda step, data_points: None,
        )


LARGE = """
import sys, torch
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.running import train_on_one_machine

width = int(sys.argv[1])
model = torch.nn.Linear(width, width)
before = model.weight.detach() * 1.0  # torch's threads are at work before the processes are forked
steps = train_on_one_machine(
    model,
    lambda model, rank, step: model(torch.ones(2, width)).square().mean(),
    OptimizerConfig(optimizer="sgd", learning_rate="0.1"),
    ExchangeConfig(exchange="servers", num_workers=2, num_servers=2, join_timeout_s=60),
    data_points=2,
    should_stop=lambda step, data_points: "enough" if step >= 3 else None,
)
print("steps", steps, "learned", not torch.equal(model.weight, before))
"""


@pytest.mark.parametrize("width", [400, 1500])
def test_a_model_so_large_that_torch_shares_its_work_between_threads_learns(width: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(width)],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert "steps 3 learned True" in done.stdout, done.stderr


def test_a_run_of_no_server_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the address of each of them, got \[\]"):
        connect(torch.nn.Linear(3, 1), [], secret=bytes(32))


def test_a_worker_that_hangs_is_left_out_and_named_and_killed_at_the_end() -> None:
    def hangs(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        if rank == 1 and step:
            threading.Event().wait()
        return loss(model, rank, step)

    config = ExchangeConfig(
        exchange="servers", num_workers=2, step_timeout_s=10.0, join_timeout_s=60.0, checkpoint_timeout_s=5.0
    )
    late = f"worker 1 did not end within {config.timeouts.drain_s:g} s of the run's end"
    with pytest.raises(RunBroken, match=late):
        train_on_one_machine(
            torch.nn.Linear(3, 1),
            hangs,
            OptimizerConfig(),
            config,
            data_points=1,
            should_stop=lambda step, data_points: "enough" if step >= 5 else None,
        )


@pytest.mark.parametrize("exchange", ["allreduce", "majority"])
def test_servers_of_a_run_that_is_to_have_none_are_refused(exchange: Literal["allreduce", "majority"]) -> None:
    config, model, optimizer = (
        ExchangeConfig(exchange=exchange, num_workers=2),
        torch.nn.Linear(3, 1),
        OptimizerConfig(),
    )
    line = f"^parameter servers are of exchange servers or async, got {exchange}$"
    with pytest.raises(ConfigError, match=line):
        train_on_one_machine(model, loss, optimizer, config, data_points=1, should_stop=lambda step, data_points: "now")
    for start in (connect, functools.partial(serve, optimizer_config=optimizer)):
        with pytest.raises(ConfigError, match=line):
            start(model, address=("127.0.0.1", 1), exchange_config=config, secret=bytes(32))
    with pytest.raises(ConfigError, match=line):
        one_server(config)


def test_servers_of_default_settings_keep_the_checkpoint_to_which_they_may_have_to_go_back() -> None:
    model = torch.nn.Linear(3, 1)
    steps = train_on_one_machine(
        model,
        loss,
        OptimizerConfig(),
        ExchangeConfig(),
        data_points=1,
        should_stop=lambda step, _: "2" if step > 1 else None,
    )
    assert steps == 2
    assert ExchangeConfig(keep_checkpoints=1).of_servers().checkpoints_kept == 2


def one_server(config: ExchangeConfig) -> ParameterServer:
    return ParameterServer(
        shard=0,
        plan=plan_shards(FlatLayout.of({"weight": (4,)}), 1),
        initial_parameters=torch.zeros(4),
        optimizer_config=OptimizerConfig(),
        exchange_config=config,
        resolve=lambda server: None,
        secret=bytes(32),
    )


def test_a_plan_for_another_number_of_servers_is_refused() -> None:
    with pytest.raises(ConfigError, match="^num_servers is 2 with a plan of 1 shards$"):
        one_server(ExchangeConfig(exchange="servers", num_servers=2))


@pytest.mark.parametrize(
    ("shard", "line"),
    [(1, "there is no address of shard 1: 1 given"), (-1, "shard must be a whole number from 0 on, got -1")],
)
def test_a_shard_that_has_no_address_is_refused(shard: int, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}$"):
        serve(torch.nn.Linear(3, 1), OptimizerConfig(), ("127.0.0.1", 0), shard=shard, secret=bytes(32))


def test_a_server_that_hangs_is_named_and_killed_and_so_are_workers_that_had_failed_before() -> None:
    computes, hangs = (multiprocessing.get_context("fork").Event() for _ in "12")

    def hang(step: int, data_points: int) -> None:
        if computes.is_set():
            hangs.set()
            threading.Event().wait()

    def fail(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        computes.set()
        hangs.wait(60)
        sys.exit(1)

    config = ExchangeConfig(
        exchange="servers",
        num_workers=2,
        step_timeout_s=0.5,
        join_timeout_s=5.0,
        reconnect_timeout_s=0.5,
        checkpoint_timeout_s=1.0,
    )
    seconds = f"{config.timeouts.servers_end_s:g}"
    late = f"server 0 did not end within {seconds} s of the end of all workers"
    with pytest.raises(RunBroken, match=f"worker 0, 1 failed; {late}"):
        train_on_one_machine(torch.nn.Linear(3, 1), fail, OptimizerConfig(), config, data_points=1, should_stop=hang)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:7077", 5, ("127.0.0.1",), ("127.0.0.1", "7077"), ("127.0.0.1", 7.5), [("127.0.0.1", 70000)], [5], None],
)
def test_what_is_no_address_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError, match=r"the address of each of them, got|an address is \(host, port\), as"):
        connect(torch.nn.Linear(3, 1), address, secret=bytes(32))


def test_addresses_as_a_file_of_json_has_them_are_addresses() -> None:
    connect(torch.nn.Linear(3, 1), [["127.0.0.1", 7902]], secret=bytes(32)).close()  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [{"worker": -1}, {"worker": "0"}, {"worker": 1.5}, {"worker": 1 << 32}])
def test_a_worker_that_is_no_rank_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="^worker must be a (whole number from 0 on|rank of at most 4294967295), got"):
        connect(torch.nn.Linear(3, 1), ("127.0.0.1", 7902), secret=bytes(32), **wrong)


def test_a_shared_secret_is_drawn_once_and_refused_where_others_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    drawn = shared_secret()
    assert len(drawn) == 32 and shared_secret() == drawn
    file = tmp_path / ".cache" / "param_servers" / "secret"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=f"others than you may read or write {file}: chmod 600 it"):
        shared_secret()
    file.write_bytes(b"")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=f"^{file}: .* at least 16 bytes"):
        shared_secret()
    with monkeypatch.context() as homeless:
        homeless.setattr(os.path, "expanduser", lambda path: path)  # a user whom no list of users has
        with pytest.raises(ConfigError, match=r"no home to keep a secret in .*: give one \(secret=\)"):
            shared_secret()
    monkeypatch.setenv("HOME", str(file))
    with pytest.raises(ConfigError, match=r"the secret cannot be kept in .*: Not a directory: give one \(secret=\)"):
        shared_secret()


def test_a_server_listens_at_its_address_whatever_interface_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}

    class Server:
        def __init__(self, **options: Any) -> None:
            given.update(options)

        def run(self) -> str:
            return "over"

    monkeypatch.setattr(running, "ParameterServer", Server)
    config = ExchangeConfig(interface="eth0")
    assert serve(torch.nn.Linear(3, 1), OptimizerConfig(), ("127.0.0.2", 7077), exchange_config=config) == "over"
    assert given["exchange_config"] == ExchangeConfig(
        exchange="servers", num_servers=1, listen_host="127.0.0.2", port=7077
    )


def test_workers_that_leave_before_the_end_are_named() -> None:
    with pytest.raises(RunBroken, match=r"^all workers ended before the run did; server 0 failed$"):
        train_on_one_machine(
            torch.nn.Linear(3, 1),
            lambda model, rank, step: sys.exit(0),
            OptimizerConfig(),
            ExchangeConfig(exchange="servers", join_timeout_s=8, step_timeout_s=1, reconnect_timeout_s=2),
            data_points=1,
            should_stop=lambda step, data_points: None,
        )
