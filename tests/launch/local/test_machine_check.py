"""What is looked at before a run is started: each thing that is missing is one line, and no folder is made."""

import importlib.util
import resource
import shutil
import socket
from types import SimpleNamespace

import pytest
import torch

from dba3c.assembly.model import check_buildable
from dba3c.errors import UserError
from launch.cli.options import parse_train
from launch.local import resources
from launch.local.resources import check_listen_host, check_open_files
from launch.role import check_disk
from tests.integration.runs import refused

WORDS = ["CartPole-v1", "--network", "mlp", "--precision"]


@pytest.fixture
def not_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("not_started")
def test_a_device_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device cuda: torch .* use --device cpu"):
        check_buildable(parse_train(["CartPole-v1", "--device", "cuda"]).config(2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(UserError, match="--device cuda:2: torch .* sees 2 GPUs, from cuda:0 on; use"):
        check_buildable(parse_train(["CartPole-v1", "--device", "cuda:2"]).config(2))
    assert "device must be cpu or cuda, not 'gpu'" in refused(capsys, "train", "CartPole-v1", "--device", "gpu")


@pytest.mark.usefixtures("not_started")
def test_a_tracker_whose_client_is_missing_is_refused(capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    assert "pip install 'dba3c[wandb]'" in refused(capsys, "train", "CartPole-v1", "--track", "tensorboard", "wandb")
    assert "did you mean wandb?" in refused(capsys, "train", "CartPole-v1", "--track", "wanb")


@pytest.mark.usefixtures("not_started")
def test_an_address_of_another_host_is_refused(capsys):
    words = ("train", "CartPole-v1", "--exchange", "servers", "--listen-host", "192.0.2.7")
    assert "--listen-host 192.0.2.7 is no address of this host" in refused(capsys, *words)
    check_listen_host("127.0.0.1")


@pytest.mark.usefixtures("not_started")
def test_one_port_for_several_servers_of_one_machine_is_refused(capsys):
    line = refused(capsys, "train", "breakout", "--servers", "2", "--workers", "2", "--port", "7000")
    assert "2 servers cannot all listen on --port 7000 of one machine" in line


@pytest.mark.usefixtures("not_started")
def test_a_port_that_is_taken_is_refused_before_there_is_a_run(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("train", "CartPole-v1", "--exchange", "servers", "--servers", "1", "--port", port)
        assert f"--port {port} of 127.0.0.1 is taken" in refused(capsys, *words, "--run-dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("not_started")
def test_a_secret_that_could_be_guessed_is_refused_before_there_is_a_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DBA3C_SECRET", "short")
    line = refused(capsys, "train", "CartPole-v1", "--run-dir", str(tmp_path / "run"))
    assert "at least 16 bytes, got 5" in line and not (tmp_path / "run").exists()


def test_a_full_disk_is_refused_with_its_arithmetic(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=200_000_000, free=100_000_000))
    with pytest.raises(
        UserError, match=r"has 100 MB left, the run may need 184: 5 more checkpoints of 24.0 MB and 64 MB"
    ):
        check_disk(tmp_path / "runs" / "new", parameters=2_000_000, keep=4)
    check_disk(tmp_path, parameters=2_000, keep=4)
    for step in range(1, 5):  # those that are there are among them: one more has room
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    check_disk(tmp_path, parameters=2_000_000, keep=4)


def test_a_file_system_that_does_not_say_how_much_it_holds_is_no_full_one(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=0, free=0))
    check_disk(tmp_path, parameters=2_000_000, keep=4)


def test_the_limit_on_open_files_is_raised_or_the_run_refused(monkeypatch):
    now = [100, 1000]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: now.__setitem__(slice(None), limits))
    check_open_files(9)
    assert now == [100, 1000]
    check_open_files(100)
    assert now == [resources.FILES_OF_A_PROCESS + 100 * resources.FILES_FOR_EACH_OTHER, 1000]
    with pytest.raises(UserError, match="no more than 1,000 are allowed here"):
        check_open_files(1000)
    lanes = parse_train(["CartPole-v1", "--lanes", "256", "--envs-per-worker", "256"]).config(1)
    with pytest.raises(UserError, match="257 processes may need 1,092 open files"):
        resources.check_machine(lanes, 2)


@pytest.mark.parametrize(
    ("precision", "quick", "warned"),
    [("bfloat16", False, True), ("bfloat16", True, False), ("float32", False, False)],
)
def test_only_who_computes_in_bfloat16_hears_that_it_is_the_slower_one_here(
    precision: str,
    quick: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(resources, "is_quick_in_bfloat16", lambda: quick)
    config = parse_train([*WORDS, precision]).config(1)
    resources.check_machine(config, 2)
    said = "dba3c: warning: this processor is slower in bfloat16 than in float32, maybe much: --precision float32"
    assert capsys.readouterr().err.strip() == (said if warned else "")
