"""What the README shows, run as a stranger would."""

import itertools
import os
import re
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import param_servers
from param_servers import ExchangeConfig, FlatLayout, OptimizerConfig, RunStopped, connect, serve
from param_servers.benchmarks.exchange import main
from param_servers.checkpoint.files import find_newest, load_checkpoint
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
ADDRESSES = itertools.count()


def free_address() -> tuple[str, int]:
    # below those that connections are given
    return "127.0.0.1", free_port()


@pytest.mark.slow
def test_the_digits_example_learns_although_a_worker_is_killed() -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "param_servers.examples.digits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "worker 4 left" in done.stdout
    accuracy = re.search(r"accuracy after \d+ steps: ([0-9.]+)", done.stdout)
    assert accuracy is not None and float(accuracy[1]) > 0.9
    assert not done.stderr


def test_the_quick_start_of_15_lines_runs_as_it_stands(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "param_servers" / "README.md").read_text(), re.DOTALL)
    assert len([line for line in program.splitlines() if line]) == 15
    program = program.replace("7077", str(free_address()[1]))
    home = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    lingers = "import param_servers.timeouts; param_servers.timeouts.LAST_WORDS_S = 600.0\n"  # where nobody leaves
    command = [sys.executable, "-c", lingers + program]
    done = subprocess.run(command, cwd=ROOT, env=home, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    loss = re.fullmatch(r"50 steps: loss ([0-9.]+) after 5[01]\n", done.stdout)
    assert loss is not None and float(loss[1]) < 0.15, done.stdout  # 0.33 before the first
    (secret,) = (tmp_path / ".cache" / "param_servers").iterdir()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(secret.read_bytes()) == 32


SERVES = """
import sys, torch
from param_servers import OptimizerConfig, serve
model = torch.nn.Linear(3, 1)
address = "127.0.0.1", int(sys.argv[1])
print(serve(model, OptimizerConfig(), address, secret=b"0123456789abcdef", checkpoint_dir="kept"))
"""


def test_ctrl_c_at_a_server_ends_the_run_with_its_last_step_in_a_checkpoint(tmp_path: Path) -> None:
    address, model = free_address(), torch.nn.Linear(3, 1)
    command = [sys.executable, "-c", SERVES, str(address[1])]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, **pipes) as server:  # type: ignore[call-overload]
        try:
            exchange = connect(model, address, secret=b"0123456789abcdef")
            for _ in range(3):
                exchange.push(torch.ones(4), exchange.pull().step, 1)
            server.send_signal(signal.SIGINT)
            with pytest.raises(RunStopped, match="Ctrl-C"):
                while True:
                    exchange.push(torch.ones(4), exchange.pull().step, 1)
            exchange.close()
            said, errors = server.communicate(timeout=60)
        finally:
            server.kill()
    assert (server.returncode, said) == (0, "Ctrl-C\n")
    assert errors == "server 0: ending the run with a checkpoint; once more to leave at once\n"
    newest = find_newest(tmp_path / "kept")
    assert newest is not None and load_checkpoint(newest).step >= 3


def test_connect_clips_where_it_is_given_an_optimizer_s_configuration() -> None:
    model, address, secret = torch.nn.Linear(3, 1), free_address(), b"sixteen bytes or more"
    start = FlatLayout.of_module(model).flatten(model)
    config = OptimizerConfig(optimizer="sgd", learning_rate="1", clip_rule="global", clip_norm=0.5)
    with ThreadPoolExecutor() as pool:
        served = pool.submit(serve, model, config, address, steps=2, secret=secret)
        exchange = connect(model, address, optimizer_config=config, secret=secret)
        exchange.push(torch.full((4,), 100.0), exchange.pull().step, 1)
        pulled = exchange.pull()
        moved = start - pulled.parameters
        exchange.push(torch.ones(4), pulled.step, 1)
        exchange.close()
        served.result(60)
    assert torch.allclose(moved, torch.full((4,), 0.25))


def test_two_servers_and_two_workers_know_each_other_by_their_addresses() -> None:
    model = torch.nn.Linear(3, 1)
    addresses, start = [free_address(), free_address()], FlatLayout.of_module(model).flatten(model)
    config = ExchangeConfig(exchange="servers", num_workers=2)
    given: dict[str, Any] = {"exchange_config": config, "secret": b"sixteen bytes or more"}
    sgd = OptimizerConfig(optimizer="sgd", learning_rate="1")

    def work(rank: int) -> torch.Tensor:
        exchange = connect(model, addresses, worker=rank, **given)
        try:
            while True:
                pull = exchange.pull()
                if pull.step == 2:
                    learned = pull.parameters.clone()
                exchange.push(torch.full((4,), float(rank)), pull.step, data_points=1)
        except RunStopped:
            return learned
        finally:
            exchange.close()

    with ThreadPoolExecutor() as pool:
        servers = [pool.submit(serve, model, sgd, addresses, shard=shard, steps=3, **given) for shard in range(2)]
        for worker in [pool.submit(work, rank) for rank in range(2)]:
            assert torch.equal(worker.result(60), start - 0.5 - 0.5)  # two steps of 1 × mean(0, 1)
        assert [server.result(60) for server in servers] == ["3 steps"] * 2


def test_the_package_opens_with_ten_names_and_none_of_them_waits_for_torch_before_it_is_asked_for() -> None:
    program = "import sys, param_servers; from param_servers import ExchangeConfig; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
    assert len(param_servers.__all__) == 10
    assert all(getattr(param_servers, name).__name__ == name for name in param_servers.__all__)


@pytest.mark.parametrize("words", ["--servers 2 --workers 2", "--exchange majority --workers 2 --backup 1"])
def test_the_benchmark_measures_a_small_case(words: str) -> None:
    command = [sys.executable, "-m", "param_servers.benchmarks.exchange", "--megabytes", "0.1", "--steps", "5"]
    command += words.split()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert '"step_ms"' in done.stdout


def test_the_benchmark_refuses_backup_workers_where_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--exchange", "allreduce", "--backup", "1"])
    assert "--exchange allreduce knows no backup workers" in capsys.readouterr().err
